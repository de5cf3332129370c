"""Readings: flat rows that say what was measured where. Tables, figures and findings are computed from rows alone.

A file of readings is JSON lines: a first line {"origin": …} that says what made them, then one row per line, without the
columns that have their default value. A value that is not finite is written as null and read back as NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from bathy.core.residual import current_name
from bathy.errors import DataError
from bathy.files import replacing


@dataclass(frozen=True, slots=True)
class Reading:
    """One number: which quantity, of which model at which step, where in it, and the exam that measured it."""

    quantity: str
    value: float
    exam: str = ""
    """The exam that measured it."""
    model: str = ""
    """Label of the model, so that several can stand side by side."""
    step: int = 0
    """Update of the training run at which it was measured."""
    seed: int = 0
    """Seed of the model or of the perturbation, where several were drawn."""
    site: str = ""
    """Path of the residual connection, empty for what concerns a stack or the whole model."""
    stack: str = ""
    kind: str = ""
    """Kind of sub-layer: self_attention, cross_attention, ffn, unknown."""
    layer: int = 0
    """Layer in its stack, from 1."""
    index: int = 0
    """Sub-layer in its stack, from 1; 0 is the stack's input."""
    role: str = ""
    """Matrix of the branch: q, k, v, out, fc1, fc2."""
    j: int = -1
    """The earlier branch that a dependency β_ij is on; 0 is the stack's input."""


COLUMNS = [field.name for field in fields(Reading)]
_DEFAULTS = {field.name: field.default for field in fields(Reading) if field.default is not MISSING}


def to_line(reading: Reading) -> str:
    """One row as JSON, without what has its default."""
    row = {key: value for key, value in asdict(reading).items() if _DEFAULTS.get(key, MISSING) != value}
    row["value"] = reading.value if math.isfinite(reading.value) else None
    return json.dumps(row, ensure_ascii=False)


def write(path: Path, readings: Iterable[Reading], origin: dict[str, Any]) -> None:
    """Write what made the readings, then the readings."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        append(file, readings, origin)


def append(file: IO[str], readings: Iterable[Reading], origin: dict[str, Any] | None = None) -> None:
    """Add rows to an open file, with a line that says what made them where one is given."""
    if origin is not None:
        file.write(json.dumps({"origin": origin}, ensure_ascii=False) + "\n")
    file.writelines(to_line(reading) + "\n" for reading in readings)


def read(path: Path) -> tuple[list[Reading], dict[str, Any]]:
    """The rows of a file, and what made them; a line that was cut off while being written is passed over at the end."""
    readings: list[Reading] = []
    origin: dict[str, Any] = {}
    try:
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")  # not splitlines: a name may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as readings: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if "origin" in row:
                origin = row["origin"]
            else:
                readings.append(_reading(row))
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):
                break
            raise DataError(
                f"{path} line {number} is not a reading ({error}); `bathy clinic` and Monitor write them"
            ) from error
    return readings, origin


def _reading(row: dict[str, Any]) -> Reading:
    return Reading(**_current(row | {"value": math.nan if row["value"] is None else float(row["value"])}))


def from_row(row: dict[str, Any]) -> Reading | None:
    """The reading of one line of a file; nothing where the line is none, as the first one."""
    try:
        return _reading(row)
    except (ValueError, TypeError, KeyError):
        return None


def _current(row: dict[str, Any]) -> dict[str, Any]:
    """A row in today's words: version 0.1 wrote encoder_attention for cross_attention."""
    if row.get("kind") != "encoder_attention":
        return row
    return row | {"kind": "cross_attention", "site": current_name(row.get("site", ""))}


def select(readings: Iterable[Reading], quantity: str = "", **columns: Any) -> list[Reading]:
    """The rows of one quantity whose columns have the given values."""
    found = [row for row in readings if row.quantity == quantity] if quantity else list(readings)
    for key, value in columns.items():  # one plain pass each: rules run while people train
        read = attrgetter(key)
        found = [row for row in found if read(row) == value]
    return found


def values(readings: Iterable[Reading], quantity: str = "", **columns: Any) -> list[float]:
    """The values of `select`."""
    return [row.value for row in select(readings, quantity, **columns)]


def groups(readings: Sequence[Reading], *columns: str) -> Iterator[tuple[tuple[Any, ...], list[Reading]]]:
    """(values of the columns, rows that have them), in the order in which they first appear."""
    found: dict[tuple[Any, ...], list[Reading]] = {}
    for row in readings:
        found.setdefault(tuple(getattr(row, column) for column in columns), []).append(row)
    yield from found.items()


def mean_over(readings: Sequence[Reading], *columns: str) -> dict[tuple[Any, ...], float]:
    """The mean value for each combination of the columns: over seeds, say."""
    return {key: sum(row.value for row in rows) / len(rows) for key, rows in groups(readings, *columns)}
