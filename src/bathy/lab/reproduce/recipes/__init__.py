"""The configs that items start from, one TOML a scale and dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bathy.tasks import read_config
from bathy.tasks.translation.config import Config


def recipe(name: str, changes: Sequence[str] = ()) -> Config:
    """The shipped config of that name with `section.key=value` changes on top."""
    return read_config(Path(__file__).parent / f"{name}.toml", changes)
