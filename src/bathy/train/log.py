"""metrics.jsonl: one row per line, in the order of updates; a resumed run cuts it back to where it resumes."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bathy.errors import require
from bathy.files import write_text


class Log:
    """The run's metrics, appended row by row and readable at any moment; TensorBoard files beside them if asked for."""

    def __init__(self, path: Path, step: int, tensorboard: bool = False) -> None:
        self.path = path
        self._open = ExitStack()
        cut_back(path, step)
        self._board: Any = None
        if tensorboard:
            require("tensorboard", "tensorboard")
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(path.parent), purge_step=step + 1)
            self._open.callback(self._board.close)

    def __enter__(self) -> Self:
        self._file = self._open.enter_context(self.path.open("a", encoding="utf-8"))
        return self

    def write(self, **row: Any) -> None:
        """Append a row; a number that is not finite is written as null."""
        plain = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        self._file.write(json.dumps(plain) + "\n")
        self._file.flush()
        if self._board:
            for key, value in plain.items():
                if isinstance(value, int | float) and key != "step":
                    self._board.add_scalar(key, value, row["step"])

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
