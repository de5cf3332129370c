"""What evaluation mode showed, held against a pass in training mode: dropout and dropped layers happen only there."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn

from bathy.sites.batch import Batch, call, undisturbed
from bathy.sites.hooks import Sites, TracedSite
from bathy.sites.site import Moment

CLOSE = 0.02
"""How far b may be from skip · x + a, relative to its largest number: what half precision makes of a sum."""


class Check:
    """Whether the moments of a site add up in every execution: b = skip · x + a."""

    def __init__(self, site: TracedSite) -> None:
        self.site, self.ran, self.holds = site, False, True
        self.kept: dict[Moment, Tensor] = {}

    def keep(self, moment: Moment, tensor: Tensor) -> None:
        """Take a moment's tensor; with the sum, compare."""
        self.kept[moment], self.ran = tensor, True
        if moment == "sum" and {"input", "branch"} <= self.kept.keys():
            x, a = self.kept.pop("input"), self.kept.pop("branch")
            if x.numel() == a.numel() == tensor.numel():
                expected = self.site.skip * x.reshape(tensor.shape) + a.reshape(tensor.shape)
                error = (expected - tensor).abs().max() / tensor.abs().max().clamp(min=1e-30)
                self.holds &= bool(error < CLOSE) or not bool(torch.isfinite(error))


def confirm(model: nn.Module, batch: Batch, found: Sites) -> None:
    """Watch all sites in training mode; a branch that a later dropout changed is then seen as b − x instead."""
    checks = [Check(site) for site in found if site.taps]
    with ExitStack() as handles, undisturbed(model), torch.no_grad():
        for check in checks:
            for moment, tap in check.site.taps.items():
                if moment != "output":
                    handles.callback(tap.on(partial(check.keep, moment)).remove)
        model.train()
        call(model, batch)
    for check in checks:
        if not check.holds:
            check.site.taps.pop("branch")
    dropped = [check.site.name for check in checks if not check.ran]
    if dropped:
        found.notes.append(f"layers are dropped at random in training ({dropped[0]} and {len(dropped) - 1} more did not run)")
    for site in found:
        site.unwatched.update(site.missing())
