"""Output change: how far the stack's output moves when the weights do (Figure 4, Theorem 2).

The mean over real tokens and dimensions of (F(x_0, W) − F(x_0, W*))² on normalised outputs, between 0 and 2. A prefix of a
stack is a stack: one pass gives all depths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from bathy.clinic.exams.gradients import Gradients
from bathy.clinic.measures import change, real
from bathy.clinic.probe import Recorder, Subject, own_weights, watching
from bathy.clinic.readings import Reading
from bathy.sites.site import Moment, Site

DELTA = 1e-3
"""Size of a random perturbation at width 128; it goes with width^−½, as the weights do."""
SATURATED = 0.05
"""An output change above this no longer grows as the theorem says."""
MOST_TOKENS = 1024
"""Tokens whose outputs are kept for comparison."""


Layer = tuple[str, int]
"""Stack and layer."""


class Outputs(Recorder):
    """The stream after every layer of every stack, real tokens only."""

    moments = ("output",)

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.last = {(site.stack, site.layer): site for site in subject.sites}
        self.found: dict[Layer, Tensor] = {}

    def hear(self, site: Site, moment: Moment, x: Tensor) -> None:
        """Keep the output of a layer's last site."""
        if self.last[site.stack, site.layer] is site:
            self.found[site.stack, site.layer] = real(x, self.subject.real.of(site, x)[:MOST_TOKENS])


def random_change(subject: Subject, draws: int = 2, delta: float = DELTA) -> list[Reading]:
    """Output change at every depth for W* = W + δ, δ = ±delta on every entry of the matrices, signs drawn at random."""
    weights = _matrix_parameters(subject.sites)
    before = subject.recorded(Outputs).found
    result = []
    for draw in range(draws):
        seed = subject.seed + draw
        generator = torch.Generator(weights[0].device).manual_seed(seed)
        with own_weights(weights), torch.no_grad():
            for weight in weights:
                scale = delta * math.sqrt(128 / min(weight.shape))
                weight.add_(torch.randn(weight.shape, generator=generator, device=weight.device).sign().to(weight), alpha=scale)
            result += _rows(subject, "output_change", before, outputs(subject), seed)
    return result


def step_change(subject: Subject, lr: float | None = None) -> list[Reading]:
    """Output change at every depth for one first step of Adam, −lr · g/(|g| + 1e-8) on every parameter."""
    lr = lr or subject.lr or 1e-5
    before = subject.recorded(Outputs).found
    subject.recorded(Gradients)
    parameters = [parameter for parameter in subject.model.parameters() if parameter.grad is not None]
    with own_weights(parameters), torch.no_grad():
        for parameter in parameters:
            grad = cast(Tensor, parameter.grad) / subject.loss_scale
            parameter.sub_(grad / (grad.abs() + 1e-8), alpha=lr)
        result = _rows(subject, "step_change", before, outputs(subject), subject.seed)
    return [subject.reading("stability", "step_lr", lr), *result]


def outputs(subject: Subject) -> dict[Layer, Tensor]:
    """The stream after every layer of every stack, by a forward pass of its own: the weights have changed."""
    recorder = Outputs(subject)
    with watching(subject.sites, recorder.hear, *Outputs.moments), torch.no_grad():
        subject.forward()
    return recorder.found


def _matrix_parameters(sites: Sequence[Site]) -> list[nn.Parameter]:
    """Every matrix of every branch, once."""
    return list({id(matrix.parameter): matrix.parameter for site in sites for matrix in site.matrices}.values())


def _rows(subject: Subject, quantity: str, before: dict[Layer, Tensor], after: dict[Layer, Tensor], seed: int) -> list[Reading]:
    return [
        subject.reading("stability", quantity, change(before[key], after[key]), stack=key[0], layer=key[1], seed=seed)
        for key in before
    ]
