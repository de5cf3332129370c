"""`bathy.predict` for a config: its model as training would start it, its batches, its loss and its optimiser."""

from __future__ import annotations

from typing import Any

import torch

from bathy.admin.profile import needs_profile
from bathy.admin.remedies import stabilise_
from bathy.clinic.forecast import Forecast
from bathy.clinic.predict import predict
from bathy.tasks import make_task
from bathy.train.config import Config
from bathy.train.optim import make_optimizer

BATCHES = 8
"""Training batches that the rehearsal reads."""


def predict_config(config: Config, **asked: Any) -> Forecast:
    """The forecast of a config; `asked` (lr, warmup, look, remedies) goes before what the config says."""
    task = make_task(config)
    task.check()
    stream = task.batches(0, 1)
    items = [next(stream) for _ in range(BATCHES)]
    torch.manual_seed(config.train.seed)
    model = task.build()
    if needs_profile(model):
        stabilise_(model, task.inputs(items[0]))
    return predict(
        model, task.inputs(items[0]), batches=items, objective=lambda m, b: task.loss(m, b)[0] / task.tokens(b),
        inputs=task.inputs, optimizer=make_optimizer(model, config.optim),
        **{"lr": config.optim.lr, "warmup": config.optim.warmup} | asked,
    )  # fmt: skip
