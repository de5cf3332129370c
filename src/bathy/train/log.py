"""metrics.jsonl: one row per line, in the order of updates; a resumed run cuts it back to where it resumes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bathy.files import write_text
from bathy.train.loggers import Write, find_logger


class Log:
    """The run's metrics, appended row by row and readable at any moment; `loggers` get the numbers too."""

    def __init__(self, path: Path, step: int, loggers: Iterable[str] = (), config: Mapping[str, Any] | None = None) -> None:
        self.path, self.step, self.loggers, self.config = path, step, tuple(loggers), config or {}
        self._open = ExitStack()
        self._writers: list[Write] = []
        cut_back(path, step)

    def __enter__(self) -> Self:
        for name in self.loggers:
            write, close = find_logger(name)(self.path.parent, self.step, self.config)
            self._writers.append(write)
            self._open.callback(close)
        self._file = self._open.enter_context(self.path.open("a", encoding="utf-8"))
        return self

    def write(self, **row: Any) -> None:
        """Append a row; a number that is not finite is written as null."""
        plain = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        self._file.write(json.dumps(plain) + "\n")
        self._file.flush()
        numbers = {key: value for key, value in plain.items() if isinstance(value, int | float) and key != "step"}
        for write in self._writers if numbers else ():
            write(row["step"], numbers)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()


def cut_back(path: Path, step: int) -> None:
    """Remove what a run wrote after update `step`, and lines that a kill cut short."""
    if path.exists():
        rows = [row for row in read_log(path) if row.get("step", 0) <= step]
        write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows so far; a line that a kill cut short is skipped."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
