"""Gradients: at every site's output and in every matrix, from one backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from bathy.clinic.measures import real, zero_share
from bathy.clinic.probe import Recorder, Subject
from bathy.clinic.readings import Reading
from bathy.sites.site import Moment, Site


class Gradients(Recorder):
    """∂L/∂x at every site's output and every stack's input."""

    moments = ("input", "output")
    backward = True

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.norms: dict[tuple[Site, int], Tensor] = {}
        self.variances: dict[tuple[Site, int], Tensor] = {}

    def hear(self, site: Site, moment: Moment, x: Tensor) -> None:
        """Wait for the gradient of what is shown; a recomputation does not count twice."""
        index = site.index if moment == "output" else 0
        rows = self.subject.real.of(site, x)
        if x.requires_grad and (site, index) not in self.norms and (index or site.index == 1):
            self.norms[site, index] = self.variances[site, index] = x.new_zeros(())
            x.register_hook(partial(self._take, (site, index), rows))

    def _take(self, key: tuple[Site, int], rows: Tensor, grad: Tensor) -> None:
        tokens = real(grad, rows) / self.subject.loss_scale
        self.norms[key], self.variances[key] = tokens.norm(), tokens.var(correction=0)


def gradients(subject: Subject) -> list[Reading]:
    """‖∂L/∂x_i‖ and Var[∂L/∂x_i] at every sub-layer's output and every stack's input; ‖∇W‖ and its zeros by matrix; the loss.

    With a loss scale, the backward pass is scaled and the norms are scaled back, as in training with float16.
    """
    found = subject.recorded(Gradients)
    result = [subject.reading("gradients", "loss", subject.true_loss())]
    for (site, index), norm in found.norms.items():
        kind = site.kind if index else "input"
        result.append(subject.reading("gradients", "gradient", norm, site, index=index, kind=kind))
        variance = found.variances[site, index]
        result.append(subject.reading("gradients", "gradient_variance", variance, site, index=index, kind=kind))
    return result + matrix_gradients(subject)


def matrix_gradients(subject: Subject) -> list[Reading]:
    """‖∇W‖ and ‖W‖ of every matrix, and the share of ∇W that is exactly 0."""
    result = []
    for site in subject.sites:
        for matrix in site.matrices:
            if matrix.grad is None:
                continue
            norm = matrix.grad.float().norm() / subject.loss_scale
            result.append(subject.reading("gradients", "weight_gradient", norm, site, role=matrix.role))
            result.append(subject.reading("gradients", "weight", matrix.weight.detach().float().norm(), site, role=matrix.role))
            zeros = zero_share(matrix.grad)
            result.append(subject.reading("gradients", "gradient_zeros", zeros, site, role=matrix.role))
    return result


def snapshot(sites: Sequence[Site]) -> dict[tuple[str, str], Tensor]:
    """A copy of every matrix, by site and role."""
    return {(site.name, matrix.role): matrix.weight.detach().clone() for site in sites for matrix in site.matrices}


def updates(subject: Subject, before: dict[tuple[str, str], Tensor]) -> list[Reading]:
    """‖W_{t+1} − W_t‖ of every matrix against the snapshot: between two checkpoints, or before and after a step."""
    result = []
    with torch.no_grad():
        for site in subject.sites:
            for matrix in site.matrices:
                norm = (matrix.weight - before[site.name, matrix.role].to(matrix.weight.device)).float().norm()
                result.append(subject.reading("updates", "weight_update", norm, site, role=matrix.role))
    return result
