"""Other packages that watch training, on the same runs: torchmortem sees the run itself, trainscope its losses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer


class PostMortem:
    """torchmortem's Autopsy of a run; nothing where it is not installed."""

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner

    def step(self, loss: float) -> None:
        """Tell it of an update."""
        if self.inner:
            self.inner.step(loss=loss)

    def findings(self) -> list[tuple[str, str, int]] | None:
        """(severity, category, first step) of each of its findings, which it has after the run only."""
        report = self.inner and self.inner.get_report()
        return report and [(each.severity.name, each.category, int(each.step_range[0])) for each in report.findings]


@contextmanager
def autopsy(model: nn.Module, optimizer: Optimizer, watched: bool = True) -> Iterator[PostMortem]:
    """A block that torchmortem watches as its own documentation says, where asked for."""
    if not watched:
        yield PostMortem()
        return
    from torchmortem import Autopsy

    logging.getLogger("torchmortem").setLevel(logging.CRITICAL)
    with Autopsy(model, optimizer=optimizer) as inner:
        yield PostMortem(inner)
