"""What is wrong with one file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bathy.errors import BathyError, explain


@dataclass(frozen=True)
class Fault:
    """A file, what is wrong with it, and the way out."""

    path: Path
    what: str
    way_out: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" + (f"; {self.way_out}" if self.way_out else "")


def attempt(path: Path, act: Callable[[], object], way_out: str = "") -> list[Fault]:
    """The fault that keeps an act from succeeding, or none."""
    try:
        act()
    except BathyError as error:
        return [Fault(path, str(error).removeprefix(f"{path} ").removeprefix(f"{path}: "), way_out)]
    except (OSError, EOFError) as error:
        return [Fault(path, explain(error), way_out)]
    return []
