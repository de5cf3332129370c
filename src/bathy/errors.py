"""What a user can cause, as exceptions that name the thing, the value and the way out.

BathyError                 shown by the command line as one line, exit code 2
├── ConfigError            a setting that does not exist or does not fit
├── DataError              text, tokens or a data folder that cannot be used
├── CheckpointError        a run or model folder that cannot be loaded
├── ModelError             a model that a method does not apply to
│   ├── SchemeError        an unknown scheme, or one that cannot do what was asked
│   └── BatchError         a batch from which nothing can be measured
├── TrainingError          a run that cannot go on (the run folder stays resumable)
│   └── Diverged           a run that was stopped because it no longer learns
└── MissingExtraError      an optional package that a command needs
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType


class BathyError(Exception):
    """Something the user can mend; its text is one line that says how."""


class ConfigError(BathyError):
    """A setting that does not exist or does not fit."""


class DataError(BathyError):
    """Text, tokens or a data folder that cannot be used."""


class CheckpointError(BathyError):
    """A run or model folder that cannot be loaded."""


class ModelError(BathyError):
    """A model that a method does not apply to."""


class SchemeError(ModelError):
    """An unknown scheme, or one that cannot do what was asked."""


class BatchError(ModelError):
    """A batch from which nothing can be measured."""


class TrainingError(BathyError):
    """A run that cannot go on; its folder stays resumable."""


class Diverged(TrainingError):  # noqa: N818, it names what happened
    """A run that was stopped because it no longer learns."""


class MissingExtraError(BathyError):
    """An optional package that a command needs."""


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean X?' for the known name closest to `name`, or nothing when none is close."""
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def require(module: str, extra: str) -> ModuleType:
    """The imported module, or an error that names the extra which brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{error.name} is not installed; it comes with: pip install 'bathy[{extra}]'") from error
