"""Sites that no module shows, measured all the same: in a pass in evaluation mode, where torch dispatches operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bathy.sites.batch import Batch, call, undisturbed
from bathy.sites.graph import Recorder, Spot


@dataclass(frozen=True)
class Seen:
    """Where one execution of a site has its x and what it adds to it; `whole`: that is b, from which x is to be taken."""

    x: Spot
    added: tuple[Spot, ...]
    whole: bool

    def moments(self, kept: Mapping[Spot, Tensor], skip: float) -> tuple[Tensor, Tensor] | None:
        """x and a, where this pass came by both."""
        if self.x not in kept or any(spot not in kept for spot in self.added):
            return None
        x, first = kept[self.x], kept[self.added[0]]
        if self.whole and x.numel() != first.numel():  # x is repeated to fit the sum
            return None
        a = sum((kept[spot].reshape(first.shape) for spot in self.added[1:]), first)
        return (x, a - skip * x.reshape(a.shape)) if self.whole else (x, a)


class Spotter(Recorder):
    """Keeps the values of a pass that are wanted, as they are when they are computed."""

    def __init__(self, wanted: set[Spot]) -> None:
        super().__init__()
        self.wanted = wanted
        self.kept: dict[Spot, Tensor] = {}

    def _give(self, tensor: Tensor, number: int) -> None:
        super()._give(tensor, number)
        spot = self.graph.values[number].spot
        if spot in self.wanted:
            with self.paused():
                self.kept[spot] = tensor.detach().clone()


def spotted(model: nn.Module, batch: Batch, executions: Sequence[Seen]) -> dict[Spot, Tensor]:
    """What one pass in evaluation mode has at the spots of these executions; the model stays as it was."""
    recorder = Spotter({spot for seen in executions for spot in (seen.x, *seen.added)})
    with undisturbed(model), recorder.hooked(model), torch.no_grad(), recorder:
        model.eval()
        call(model, batch)
    return recorder.kept
