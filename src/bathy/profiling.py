"""Admin: profile one batch, set ω so that the output changes by O(log N) at the start (Liu et al., 2020).

    ω_1 = 1;    ω_i² = Var[ω_{i-1} · x_{i-2}] + Var[a_{i-1}]    for i ≥ 2

x_0 is the stack's input and a_i the branch's output, so ω_i² telescopes to Var[x_0] + Σ_{0<j<i} Var[a_j]. Each ω is set
while the one forward pass goes on. Encoder and decoder are two chains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bathy.console import as_text, table
from bathy.errors import BatchError, CheckpointError, ModelError, SchemeError
from bathy.files import origin, write_json
from bathy.schemes import SCHEMES
from bathy.sites.batch import Batch, call, on_device_of, undisturbed
from bathy.sites.positions import ALL, Mask, Positions, first_tokens
from bathy.sites.site import Site, declared_sites, variance
from bathy.sites.trace import find_sites
from bathy.transformer import Transformer

MOST_TOKENS = 8192
"""Tokens that a profile uses at most, as the paper does."""
PLAIN = {"post_ln", "pre_ln", "looklinear"}
"""Schemes without parts of their own on shortcut or branch: their models are treated as anyone's."""


@dataclass(frozen=True)
class SiteProfile:
    """What profiling saw at one site."""

    name: str
    stack: str
    input_variance: float
    """Var[x_{i-1}]."""
    branch_variance: float
    """Var[a_i]."""
    omega: float
    beta2: float
    """Predicted β²_ii = Var[a_i] / (ω_i² Var[x_{i-1}] + Var[a_i])."""
    calls: int = 1
    """How often one pass runs the site."""


@dataclass(frozen=True)
class Profile:
    """ω and variances of every site, from one batch. Prints as a table, saves and loads as JSON."""

    sites: list[SiteProfile]
    tokens: dict[str, int]
    """Real tokens the statistics are over, by stack."""
    padding: dict[str, str] = field(default_factory=dict)
    """How it was known which tokens are real, by stack: by which mask, by the padding id, or all positions."""
    notes: list[str] = field(default_factory=list)
    """What stabilising did that was not plainly asked for, or found not worth doing."""
    origin: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def omega(self) -> dict[str, float]:
        """ω by site."""
        return {site.name: site.omega for site in self.sites}

    def difference(self, other: Profile) -> float:
        """The largest relative difference between the two profiles' ω."""
        return max(abs(other.omega[name] / omega - 1) for name, omega in self.omega.items())

    def save(self, path: str | Path) -> None:
        """Write as JSON."""
        write_json(Path(path), asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read what `save` wrote."""
        try:
            value = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(**value | {"sites": [SiteProfile(**site) for site in value["sites"]]})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is not a profile ({error}); profile(model, batch).save(path) writes one") from error

    def change(self, stack: str) -> float:
        """Σ β² over the stack's sites without ω: Var[a] / (Var[x] + Var[a]), to which Theorem 2 sets the output change."""
        rows = [site for site in self.sites if site.stack == stack]
        return sum(site.calls * site.branch_variance / (site.input_variance + site.branch_variance) for site in rows)

    def __str__(self) -> str:
        rows = [(site.name, site.input_variance, site.branch_variance, site.omega, site.beta2) for site in self.sites]
        known = {stack: f" ({name if name == ALL else f'by {name}'})" for stack, name in self.padding.items()}
        counts = ", ".join(f"{count} {stack} tokens{known.get(stack, '')}" for stack, count in self.tokens.items())
        text = as_text(table(f"profile over {counts}", ["site", "Var[x]", "Var[a]", "ω", "β²"], rows))
        return "\n".join([text, *self.notes])


def profile(model: nn.Module, batch: Batch, tokens: int = MOST_TOKENS, mask: Mask | None = None) -> Profile:
    """The ω that Admin gives each site, from one forward pass in training mode over at most `tokens` real tokens of the batch.

    Real are the tokens that `mask` (b t) says, else the batch's attention or key-padding mask, else all. Weights, buffers, mode
    and random state stay as they were.
    """
    batch = on_device_of(model, batch)
    return profile_sites(model, profiled_sites(model, batch), batch, tokens, mask)


def profile_sites(model: nn.Module, sites: Sequence[Site], batch: Batch, tokens: int, mask: Mask | None = None) -> Profile:
    """The profile of these sites."""
    batch, positions = first_tokens(model, batch, sites, tokens, mask)
    with _borrowed_omegas(sites), undisturbed(model), torch.no_grad():
        readings = _measure(model.train(), sites, batch, positions)
    positions.check()
    return Profile(_site_profiles(sites, readings), positions.counts, positions.source, origin=origin())


def profiled_sites(model: nn.Module, batch: Batch) -> Sequence[Site]:
    """The sites whose ω a batch sets: those built for it, else what tracing finds; our models built otherwise are an error."""
    declared = declared_sites(model)
    sites = [site for site in declared if SCHEMES[site.scheme].profiled]
    built = sorted({site.scheme for site in declared} - PLAIN)
    if built and not sites:
        raise SchemeError(
            f"the model has no Admin sites ({' and '.join(built)}); build it with encoder_scheme or decoder_scheme 'admin'"
        )
    return sites or find_sites(model, batch)


@contextmanager
def _borrowed_omegas(sites: Sequence[Site]) -> Iterator[None]:
    """A block in which every Post-LN site that is to have an ω has one to set; afterwards all is as before."""
    kept = [(site, site.omega.detach().clone()) for site in sites if isinstance(site.omega, nn.Parameter)]
    lent = [site for site in sites if site.free and not site.obstacle and isinstance(site.omega, float) and site.omega == 1]
    try:
        for site in lent:
            site.attach_()
        yield
    finally:
        for site in lent:
            site.detach_()
        with torch.no_grad():
            for site, omega in kept:
                site.omega.copy_(omega)  # type: ignore[union-attr]


def _measure(model: nn.Module, sites: Sequence[Site], batch: Batch, positions: Positions) -> list[list[float]]:
    """[Var[x], Var[a], ω²] of each site, with every ω set as the pass goes on.

    Where one pass runs a site several times, its variances are means and ω² is the harmonic mean, which keeps Σ 1/ω². A foreign
    model's ω is at least 1: where its stack begins with a variance far below 1 (embeddings of deviation 0.02 without a norm), a
    smaller ω would give the branches more weight than they have in the plain model.
    """
    square: dict[str, Tensor] = {}  # ω² of the next site, by stack
    least = 0.0 if isinstance(model, Transformer) else 1.0
    incoming: dict[str, Tensor] = {}
    readings: dict[str, list[Tensor]] = {site.name: [] for site in sites}

    def enter(site: Site, x: Tensor) -> None:
        incoming[site.stack] = variance(x, positions.of(site, x))

    def leave(site: Site, a: Tensor) -> None:
        var_x, var_a = incoming[site.stack], variance(a, positions.of(site, a))
        if isinstance(site.omega, nn.Parameter):
            omega2 = square.get(site.stack, torch.ones_like(var_x))
            site.omega.copy_(omega2.sqrt())
        else:
            omega2 = torch.full_like(var_x, site.omega**2)
        readings[site.name].append(torch.stack([var_x, var_a, 1 / omega2]))
        square[site.stack] = (omega2 * var_x + var_a).clamp(min=least)

    handles = [site.on("input", partial(enter, site)) for site in sites]
    handles += [site.on("branch", partial(leave, site)) for site in sites]
    try:
        call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    for site in sites:
        if not readings[site.name]:
            raise ModelError(f"{site.name} ran when its model was traced, but not when it was profiled; is its layer dropped?")
    means = torch.stack([torch.stack(readings[site.name]).mean(0) for site in sites])
    return torch.cat([means[:, :2], 1 / means[:, 2:]], dim=1).tolist()


def _site_profiles(sites: Sequence[Site], readings: list[list[float]]) -> list[SiteProfile]:
    """Rows of a profile; a value that is not finite is an error which names the first site that has one."""
    rows = []
    for site, (var_x, var_a, omega2) in zip(sites, readings, strict=True):
        if not math.isfinite(var_x + var_a + omega2):
            raise BatchError(
                f"{site.name} has variances {var_x:g} and {var_a:g}: the model overflows there; check weights and dtype"
            )
        beta2 = var_a / (omega2 * var_x + var_a)
        rows.append(SiteProfile(site.name, site.stack, var_x, var_a, omega2**0.5, beta2, site.calls))
    return rows
