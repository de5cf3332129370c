"""Layer dependency β_ij: how much of a sub-layer's output comes from each branch before it (Figures 7 and 8).

    x̂_i = Σ_{j≤i} β_ij â_j,    β_ij = √Var[c_ij] / √Var[x_i]

c_ij is what is left of a_j in x_i. Every part of a sum passes the shortcut's ω and the norm: centred over the width where
the norm centres, divided by the token's own σ, times γ. ν is a part of its own and not among the β. Pre-LN has no norm in
the stream, so there c_ij = a_j. The same for every scheme, at the start and in a trained model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bathy.clinic.measures import real
from bathy.clinic.probe import Recorder, Subject
from bathy.clinic.readings import Reading
from bathy.sites.site import Moment, Site

MOST_NUMBERS = 2**26
"""Numbers that the parts of one stack may take together: 256 MB; tokens are left out until they fit."""


class NotAskedError(Exception):
    """A norm does not take a few rows of the stream alone: its channels come first, or it takes or gives more than a tensor."""


class Chains(Recorder):
    """The stream of every stack, taken apart as it is computed."""

    moments = ("input", "branch", "sum", "output")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.chains: dict[str, Chain] = {}
        self.readings: list[Reading] = []

    def hear(self, site: Site, moment: Moment, x: Tensor) -> None:
        """Follow the stream; rows are made at each output."""
        subject = self.subject
        if site.stack not in self.chains:
            self.chains[site.stack] = Chain(subject.real.of(site, x), len(subject.stacks[site.stack]))
        chain = self.chains[site.stack]
        if subject.real.of(site, x).shape != chain.rows.shape:  # pooled, or tokens joined: it is another stream from here on
            chain.broken = True
        if chain.broken:
            return
        if moment != "output":
            chain.hear(moment, x)
            return
        if len(chain.heard) < 3:  # a part of the stream cannot be watched: what follows is not known either
            chain.broken = True
            return
        try:
            betas = chain.advance(site, x)
        except NotAskedError:
            chain.broken = True
            return
        for j, beta in enumerate(betas):
            self.readings.append(subject.reading("dependency", "beta", beta, site, j=j))
        self.readings.append(subject.reading("dependency", "beta2_sum", sum(beta**2 for beta in betas), site))


def dependency(subject: Subject) -> list[Reading]:
    """β_ij for all i and j ≤ i (j = 0 the stack's input), and Σ_j β²_ij, which correlations move away from 1."""
    return subject.recorded(Chains).readings


class Chain:
    """One stack's stream, as the sum of the parts that its input, its branches and the norms' ν have put in."""

    def __init__(self, rows: Tensor, sites: int) -> None:
        self.rows, self.sites = rows, sites
        self.parts: list[Tensor] = []
        self.rest: Tensor | None = None
        """ν, and whatever else entered between two sites."""
        self.heard: dict[str, Tensor] = {}
        self.broken = False

    def hear(self, moment: str, x: Tensor) -> None:
        """Keep what a moment showed, of as many tokens as memory allows."""
        most = max(1, MOST_NUMBERS // (x.shape[-1] * (self.sites + 2)))
        self.heard[moment] = real(x, self.rows[:most])

    def advance(self, site: Site, output: Tensor) -> list[float]:
        """Carry every part through the site; β_ij of its output for j = 0 … i."""
        x, a, b = (self.heard[moment] for moment in ("input", "branch", "sum"))
        self.hear("output", output)
        y = self.heard["output"]
        self.parts = self.parts or [x]
        self.rest = x - torch.stack(self.parts).sum(0)
        omega = site.omega.detach().float() if isinstance(site.omega, nn.Parameter) else site.omega
        carry, shift = through(site.post, b, y)
        self.parts = [carry(omega * part) for part in self.parts] + [carry(a)]
        self.rest = carry(omega * self.rest) + shift
        scale = y.var(correction=0).sqrt()
        return torch.stack([part.var(correction=0).sqrt() / scale for part in self.parts]).tolist()


def through(norm: nn.Module | None, b: Tensor, y: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor | float]:
    """How a part of the sum b passes the norm that made y of it, and the ν that the norm adds.

    Norms of any kind are asked, not known: ν is what the norm gives for 0, γ what it gives for ±1, and it centres if a
    constant added to its input changes nothing. σ comes from b and y, so that eps is in it.
    """
    if norm is None:
        return (lambda part: part), 0.0
    signs = torch.ones_like(b[0])
    signs[1::2] = -1
    asked = torch.stack([torch.zeros_like(signs), signs, signs + 1])
    weight = next(norm.parameters(), signs)
    try:
        nu, plain, moved = norm.forward(asked.to(weight.dtype)).float()
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NotAskedError from error
    gamma = (plain - nu) * signs
    centres = bool((moved - plain).abs().max() <= 1e-3 * (plain - nu).abs().max())

    def centred(part: Tensor) -> Tensor:
        return part - part.mean(-1, keepdim=True) if centres else part

    inverse = (y - nu).norm(dim=-1, keepdim=True) / (gamma * centred(b)).norm(dim=-1, keepdim=True).clamp_min(1e-30)
    return (lambda part: gamma * centred(part) * inverse), nu
