"""The engine: trains any model on any task, exactly resumable, on one process or many.

from bathy.train import Config, OptimConfig, Shuffled, Task, TrainConfig, fit
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bathy.train.config import Config as Config
    from bathy.train.config import OptimConfig as OptimConfig
    from bathy.train.config import TrainConfig as TrainConfig
    from bathy.train.loop import fit as fit
    from bathy.train.task import Shuffled as Shuffled
    from bathy.train.task import Stream as Stream
    from bathy.train.task import Task as Task
else:
    # Imported when used, and hidden from type checkers for the same reason as in bathy/__init__.py.
    EXPORTS = {
        "Config": "bathy.train.config",
        "OptimConfig": "bathy.train.config",
        "Shuffled": "bathy.train.task",
        "Stream": "bathy.train.task",
        "Task": "bathy.train.task",
        "TrainConfig": "bathy.train.config",
        "fit": "bathy.train.loop",
    }
    __all__ = sorted(EXPORTS)

    def __getattr__(name):
        if name not in EXPORTS:
            raise AttributeError(f"module 'bathy.train' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(EXPORTS[name]), name)

    def __dir__():
        return __all__
