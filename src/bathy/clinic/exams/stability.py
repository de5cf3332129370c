"""Output change: how far the stack's output moves when the weights do (Figure 4, Theorem 2).

The mean over real tokens and dimensions of (F(x_0, W) − F(x_0, W*))² on normalised outputs, between 0 and 2. A prefix of a
stack is a stack: one pass gives all depths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bathy.clinic.measures import change, real
from bathy.clinic.probe import Subject, own_weights, watching
from bathy.clinic.readings import Reading
from bathy.sites.site import Moment, Site

DELTA = 1e-3
"""Size of a random perturbation at width 128; it goes with width^−½, as the weights do."""
SATURATED = 0.05
"""An output change above this no longer grows as the theorem says."""
MOST_TOKENS = 1024
"""Tokens whose outputs are kept for comparison."""


def random_change(subject: Subject, draws: int = 2, delta: float = DELTA) -> list[Reading]:
    """Output change at every depth for W* = W + δ, δ = ±delta on every entry of the matrices, signs drawn at random."""
    weights = _matrix_parameters(subject.sites)
    before = outputs(subject)
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
    parameters = [parameter for parameter in subject.model.parameters() if parameter.requires_grad]
    before = outputs(subject)
    grads = torch.autograd.grad(subject.objective(), parameters, allow_unused=True)
    with own_weights(parameters), torch.no_grad():
        for parameter, grad in zip(parameters, grads, strict=True):
            if grad is not None:
                parameter.sub_(grad / (grad.abs() + 1e-8), alpha=lr)
        result = _rows(subject, "step_change", before, outputs(subject), subject.seed)
    return [subject.reading("stability", "step_lr", lr), *result]


def outputs(subject: Subject) -> dict[tuple[str, int], Tensor]:
    """The stream after every layer of every stack, real tokens only."""
    last = {(site.stack, site.layer): site for site in subject.sites}
    rows, found = subject.rows, {}

    def watch(site: Site, moment: Moment, x: Tensor) -> None:
        if last[site.stack, site.layer] is site:
            found[site.stack, site.layer] = real(x, rows[site.stack][:MOST_TOKENS])

    with watching(subject.sites, watch, "output"), torch.no_grad():
        subject.forward()
    return found


def _matrix_parameters(sites: Sequence[Site]) -> list[nn.Parameter]:
    """Every matrix of every branch, once."""
    return list({id(matrix.parameter): matrix.parameter for site in sites for matrix in site.matrices}.values())


def _rows(
    subject: Subject, quantity: str, before: dict[tuple[str, int], Tensor], after: dict[tuple[str, int], Tensor], seed: int
) -> list[Reading]:
    return [
        subject.reading("stability", quantity, change(before[key], after[key]), stack=key[0], layer=key[1], seed=seed)
        for key in before
    ]
