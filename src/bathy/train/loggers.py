"""Where a run's metrics go besides metrics.jsonl: a row of LOGGERS for each place.

A logger is a function (run folder, last update that stands, config) → (write, close); `write(step, numbers)` gets every row's
finite numbers. What it needs is an extra, imported when a run asks for it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bathy.errors import ConfigError, require, unknown

Write = Callable[[int, Mapping[str, float]], object]
Logger = Callable[[Path, int, Mapping[str, Any]], tuple[Write, Callable[[], object]]]


def tensorboard(run: Path, step: int, config: Mapping[str, Any]) -> tuple[Write, Callable[[], object]]:
    """TensorBoard's files in the run's folder; `tensorboard --logdir` shows them."""
    require("tensorboard", "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    board: Any = SummaryWriter(str(run), purge_step=step + 1)

    def write(at: int, numbers: Mapping[str, float]) -> None:
        for key, value in numbers.items():
            board.add_scalar(key, value, at)

    return write, board.close


def wandb(run: Path, step: int, config: Mapping[str, Any]) -> tuple[Write, Callable[[], object]]:
    """Weights & Biases: offline in RUN/wandb unless WANDB_MODE says otherwise; `wandb sync` uploads it later.

    Account, key and project are wandb's own affair (`wandb login`, WANDB_PROJECT): nothing of them is written into a run.
    """
    module = require("wandb", "wandb")
    name = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]  # the same for a run that resumes
    opened = module.init(
        project=os.environ.get("WANDB_PROJECT", "bathy"), name=run.name, id=name, resume="allow", dir=str(run),
        mode=os.environ.get("WANDB_MODE", "offline"), config=dict(config),
        settings=module.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True),
    )  # fmt: skip
    return lambda at, numbers: opened.log(dict(numbers), step=at), opened.finish


LOGGERS: dict[str, Logger] = {"tensorboard": tensorboard, "wandb": wandb}
"""Name in train.loggers to what opens it."""


def find_logger(name: str) -> Logger:
    """The logger of that name, or an error that names the nearest."""
    if name not in LOGGERS:
        raise ConfigError(unknown("logger", name, LOGGERS))
    return LOGGERS[name]
