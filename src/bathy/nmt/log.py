"""metrics.jsonl: one row a line, in the order of updates; a resumed run cuts it back to where it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bathy.files import write_text


class Log:
    """The run's metrics, appended row by row and readable at any moment."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        rows = [row for row in read_log(path) if row["step"] <= step]
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))

    def __enter__(self) -> Self:
        self._file = self.path.open("a", encoding="utf-8")
        return self

    def write(self, **row: Any) -> None:
        """Append a row."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows so far; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
