"""The grid: which settings take which values, and the name of a trial's folder."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bathy.errors import ConfigError

Point = dict[str, str]
"""Setting to its value, both as written on the command line."""


@dataclass(frozen=True)
class Grid:
    """Settings and their values, in the order in which they were given."""

    axes: dict[str, tuple[str, ...]]
    """`section.key`, or several joined by + that take the same value, to its values as they were written."""

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Grid:
        """From `section.key=value,value,…`, one text an axis."""
        axes: dict[str, tuple[str, ...]] = {}
        for text in texts:
            key, equals, values = text.partition("=")
            found = tuple(value.strip() for value in values.split(",") if value.strip())
            if not equals or not found or not all(re.fullmatch(r"\w+\.\w+", part) for part in key.split("+")):
                raise ConfigError(f"--grid {text}: write it as section.key=value,value, for example --grid optim.lr=1e-4,2e-4")
            if key in axes or len(set(found)) < len(found):
                raise ConfigError(f"--grid {text}: a setting and each of its values can stand there once")
            axes[key] = found
        if not axes:
            raise ConfigError("a sweep needs at least one --grid section.key=value,value")
        return cls(axes)

    @property
    def points(self) -> list[Point]:
        """Every combination."""
        return [dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values())]


def changes(point: Point) -> list[str]:
    """The point as `section.key=value` changes of a config."""
    return [f"{part}={value}" for key, value in point.items() for part in key.split("+")]


def folder_name(point: Point) -> str:
    """A name that says the parameters and is a file name everywhere: lr=1e-4,beta2=0.99."""
    short = {key: key.split("+")[0].split(".")[1] for key in point}
    if len(set(short.values())) < len(short):
        short = {key: key.split("+")[0] for key in point}
    safe = {key: re.sub(r"[^\w.+-]", "_", value) for key, value in point.items()}
    return ",".join(f"{short[key]}={safe[key]}" for key in point)
