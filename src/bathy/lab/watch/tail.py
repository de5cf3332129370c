"""JSON lines that another process is writing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Tail:
    """The rows of a file as they come. A line that is not finished waits; a file that was cut back is read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file, self._offset = (0, 0), 0
        self._last = b""

    def new(self) -> tuple[list[dict[str, Any]], bool]:
        """The rows since the last call, and whether they are all there are: earlier ones no longer hold."""
        try:
            with self.path.open("rb") as file:
                again = self._changed(file.fileno())
                file.seek(self._offset)
                data = file.read()
        except OSError:  # not there yet, or gone for the moment while it is replaced
            return [], False
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._last = whole[-64:] or self._last
        return [row for line in whole.split(b"\n") if (row := _row(line)) is not None], again

    def _changed(self, descriptor: int) -> bool:
        """Whether this is another file than the one read so far, or a shorter one; then reading starts over."""
        found = os.fstat(descriptor)
        same = (found.st_dev, found.st_ino) == self._file and found.st_size >= self._offset and self._continues(descriptor)
        if not same:
            self._file, self._offset, self._last = (found.st_dev, found.st_ino), 0, b""
        return not same

    def _continues(self, descriptor: int) -> bool:
        """Whether what was read last still stands where it stood."""
        return os.pread(descriptor, len(self._last), self._offset - len(self._last)) == self._last


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # also bytes that are no UTF-8
        return None
    return row if isinstance(row, dict) else None
