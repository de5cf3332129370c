"""What a remedy may change, kept so that it can be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from bathy.sites.site import Site


class Undo:
    """A block whose changes to the sites' weights, norms and ω are taken back when it raises, or on request."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.all = list(sites)
        self.omegas = {id(site): _omega(site) for site in self.all}
        self.values = {id(tensor): (tensor, tensor.detach().clone()) for site in self.all for tensor in _touched(site)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.sites(self.all)

    def sites(self, sites: Sequence[Site]) -> None:
        """Take back what was changed at these sites."""
        for site in sites:
            was, now = self.omegas[id(site)], site.omega
            if isinstance(was, Tensor) and not isinstance(now, nn.Parameter):
                site.attach_()
            elif isinstance(was, float) and (isinstance(now, nn.Parameter) or now != was):
                site.detach_() if was == 1 else site.attach_(was)
        with torch.no_grad():
            for site in sites:
                for tensor in _touched(site):
                    tensor.copy_(self.values[id(tensor)][1])
                if isinstance(self.omegas[id(site)], Tensor):
                    site.omega.copy_(self.omegas[id(site)])  # type: ignore[union-attr, arg-type]


def _omega(site: Site) -> Tensor | float:
    return site.omega.detach().clone() if isinstance(site.omega, nn.Parameter) else site.omega


def _touched(site: Site) -> list[Tensor]:
    """Parameters of a site that a remedy may change, ω left out."""
    matrices = [parameter for matrix in site.matrices for parameter in matrix.module.parameters(recurse=False)]
    norm = [] if site.post is None else [p for name, p in site.post.named_parameters() if not name.startswith("bathy_omega")]
    found = {id(tensor): tensor for tensor in [*matrices, *norm, *(output.parameter for output in site.outputs)]}
    return list(found.values())
