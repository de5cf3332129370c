"""One update, listened to from its forward pass to the new weights: what a monitor samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bathy.clinic.exams.activations import site_rows, statistics
from bathy.clinic.outputs import output_rows, source_influence
from bathy.clinic.probe import Labelled, watching
from bathy.clinic.readings import Reading
from bathy.core.residual import Matrix
from bathy.sites.real_tokens import RealTokens
from bathy.sites.site import Moment, Site
from bathy.sites.wrapped import is_shard

MOST_NUMBERS = 2**16
"""Entries of a matrix whose update is followed; a larger matrix is followed in evenly spaced rows."""
BY_THE_RATE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.Adamax)
"""Optimisers that divide by the gradient's own size, so that no entry moves by much more than the rate."""
MOMENTS: tuple[Moment, ...] = ("input", "branch", "sum", "output")


class Sample:
    """One update, listened to from its forward pass to the new weights.

    What comes first counts: the first micro-batch of several, and the first of the two forward passes that activation
    checkpointing makes. Its gradients are taken from whichever pass autograd goes back through.
    """

    def __init__(self, sites: Sequence[Site], outside: dict[str, nn.Parameter]) -> None:
        self.sites, self.outside = sites, outside
        self.real: RealTokens | None = None
        self.before = {(site, m.role): part.clone() for site in sites for m in site.matrices if (part := held(m)) is not None}
        self.outside_before = {name: part.clone() for name, p in outside.items() if (part := held_rows(p)) is not None}
        self.seen: dict[tuple[Site, Moment], Tensor] = {}
        self.limits: dict[Site, float] = {}
        self.gradients: dict[Site, Tensor] = {}
        self.weight_gradients: dict[tuple[Site, str], Tensor] = {}
        self.output: list[Reading] = []
        self._hooks = ExitStack()
        self._hooks.enter_context(watching(sites, self._hear, *MOMENTS))

    def close(self) -> None:
        """Stop listening."""
        self._hooks.close()

    def _hear(self, site: Site, moment: Moment, x: Tensor) -> None:
        if not torch.is_grad_enabled():  # a validation between two updates
            return
        if (site, moment) not in self.seen and (moment != "input" or site.index == 1):
            with torch.no_grad():
                self.seen[site, moment] = statistics(x, self.real.of(site, x) if self.real else None)
            self.limits[site] = torch.finfo(x.dtype).max
        if moment == "output" and x.requires_grad and site not in self.gradients:
            self.gradients[site] = x.new_full((), math.nan)
            x.register_hook(lambda grad: self.gradients.__setitem__(site, grad.detach().float().norm()))

    def hear_output(self, output: Any) -> None:
        """Read what the model returns, the first time."""
        if not self.output and torch.is_grad_enabled():
            self.output = output_rows(Labelled(), "monitor", output)

    def hear_gradients(self) -> None:
        """Take the norms of the matrices' gradients, just before the optimiser reads them."""
        for site in self.sites:
            for matrix in site.matrices:
                if (part := held(matrix, gradient=True)) is not None:
                    self.weight_gradients[site, matrix.role] = whole(matrix, part)

    def usual_update(self, optimizer: Optimizer) -> float | None:
        """Mean ‖ΔW‖/‖W‖ that the optimiser makes of its rate: lr/rms(W) where each entry moves by the rate; else unknown."""
        if not isinstance(optimizer, BY_THE_RATE) or not self.before:
            return None
        rate = float(optimizer.param_groups[0]["lr"])
        sizes = torch.stack([part.square().mean().sqrt() for part in self.before.values()])
        return float((rate / sizes.clamp_min(1e-12)).mean())

    def rows_of(self, label: Labelled) -> list[Reading]:
        """All rows, after the update."""
        result = []
        seen = dict(zip(self.seen, torch.stack(list(self.seen.values())).tolist(), strict=True)) if self.seen else {}
        for site in self.sites:
            found = {moment: seen[site, moment] for moment in MOMENTS if (site, moment) in seen}
            if found:
                result += site_rows(label, site, found, self.limits[site])
            if site in self.gradients:
                result.append(label.reading("gradients", "gradient", self.gradients[site], site))
            for matrix in site.matrices:
                result += self._matrix_rows(label, site, matrix)
        influence = source_influence(result)
        if influence is not None:
            result.append(label.reading("gradients", "source_influence", influence))
        return result + list(self._outside_rows(label)) + [replace(row, **label.label) for row in self.output]

    def _matrix_rows(self, label: Labelled, site: Site, matrix: Matrix) -> Iterator[Reading]:
        before, after = self.before.get((site, matrix.role)), held(matrix)
        if before is not None and after is not None:
            yield label.reading("updates", "weight", whole(matrix, before), site, role=matrix.role)
            yield label.reading("updates", "weight_update", whole(matrix, after - before), site, role=matrix.role)
        if (site, matrix.role) in self.weight_gradients:
            norm = self.weight_gradients[site, matrix.role]
            yield label.reading("gradients", "weight_gradient", norm, site, role=matrix.role)

    def _outside_rows(self, label: Labelled) -> Iterator[Reading]:
        """Embeddings, the output matrix, and whatever else stands outside the branches."""
        for name, before in self.outside_before.items():
            after = held_rows(self.outside[name])
            if after is not None:
                share = math.sqrt(self.outside[name].numel() / before.numel())
                yield label.reading("updates", "weight", before.norm() * share, site=name)
                yield label.reading("updates", "weight_update", (after - before).norm() * share, site=name)


def outside(model: nn.Module, sites: Sequence[Site]) -> dict[str, nn.Parameter]:
    """The matrices of a model that belong to no site's branch, by name."""
    inside = {id(matrix.parameter) for site in sites for matrix in site.matrices}
    return {name: p for name, p in model.named_parameters() if p.dim() == 2 and id(p) not in inside}


def held(matrix: Matrix, gradient: bool = False) -> Tensor | None:
    """Evenly spaced rows of the matrix, or of its gradient, that this process holds; nothing where it holds none."""
    tensor = matrix.parameter.grad if gradient else matrix.parameter
    start, stop = _span(matrix)
    return None if tensor is None else held_rows(tensor, matrix.transposed, start, stop)


def held_rows(tensor: Tensor, transposed: bool = False, start: int = 0, stop: int | None = None) -> Tensor | None:
    """Evenly spaced rows of what this process holds of a matrix, in float32."""
    local = tensor.to_local() if is_shard(tensor) else tensor  # the first process holds the first rows
    rows = (local.detach().T if transposed else local.detach())[start:stop]
    return rows[:: max(1, math.ceil(rows.numel() / MOST_NUMBERS))].float() if rows.numel() else None


def whole(matrix: Matrix, part: Tensor) -> Tensor:
    """The norm of the whole matrix, estimated from a part of it."""
    start, stop = _span(matrix)
    inputs = matrix.parameter.shape[0 if matrix.transposed else 1]
    return part.norm() * math.sqrt((stop - start) * inputs / part.numel())


def _span(matrix: Matrix) -> tuple[int, int]:
    """First row of the matrix and the row after its last."""
    return matrix.rows.indices(matrix.parameter.shape[1 if matrix.transposed else 0])[:2]
