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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bathy.console import as_text, table
from bathy.errors import BatchError, CheckpointError, SchemeError
from bathy.files import origin, write_json
from bathy.folding import fold_sites_
from bathy.schemes import SCHEMES
from bathy.sites.batch import Batch, call, first_sentences, on_device_of, real_tokens, sentences_within, undisturbed
from bathy.sites.site import DeclaredSite, Site, declared_sites, variance

MOST_TOKENS = 8192
"""Tokens that a profile uses at most, as the paper does."""


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


@dataclass(frozen=True)
class Profile:
    """ω and variances of every site, from one batch. Prints as a table, saves and loads as JSON."""

    sites: list[SiteProfile]
    tokens: dict[str, int]
    """Real tokens the statistics are over, by stack."""
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
            return cls([SiteProfile(**site) for site in value["sites"]], value["tokens"], value["origin"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is not a profile ({error}); profile(model, batch).save(path) writes one") from error

    def __str__(self) -> str:
        rows = [(site.name, site.input_variance, site.branch_variance, site.omega, site.beta2) for site in self.sites]
        counts = ", ".join(f"{count} {stack} tokens" for stack, count in self.tokens.items())
        return as_text(table(f"profile over {counts}", ["site", "Var[x]", "Var[a]", "ω", "β²"], rows))


def profile(model: nn.Module, batch: Batch, tokens: int = MOST_TOKENS) -> Profile:
    """The ω that Admin gives each site, from one forward pass in training mode over at most `tokens` real tokens of the batch.

    Weights, buffers, mode and random state stay as they were.
    """
    sites = profiled_sites(model)
    batch = on_device_of(model, batch)
    masks = real_tokens(model, batch)
    sentences = sentences_within(masks, tokens)
    masks = {stack: mask[:sentences] for stack, mask in masks.items()}
    with _borrowed_omegas(sites), undisturbed(model), torch.no_grad():
        readings = _measure(model.train(), sites, first_sentences(batch, sentences), masks)
    counts = {stack: int(mask.sum()) for stack, mask in masks.items()}
    return Profile(_site_profiles(sites, readings), counts, origin())


def stabilise_(model: nn.Module, batch: Batch, scheme: str = "admin", tokens: int = MOST_TOKENS) -> Profile:
    """Profile the model and set its ω, or, where it was built as `admin_rescaled`, fold ω into the weights at once."""
    result = profile(model, batch, tokens)
    sites = profiled_sites(model)
    rescaled = [site for site in sites if site.scheme == "admin_rescaled"]
    for site in rescaled[1:]:
        site.attach_()
    with torch.no_grad():
        for site in sites:
            if isinstance(site.omega, nn.Parameter):
                site.omega.fill_(result.omega[site.name])
    fold_sites_(rescaled)
    return result


def profiled_sites(model: nn.Module) -> list[DeclaredSite]:
    """The sites whose ω a batch sets; a model without any is an error."""
    declared = declared_sites(model)
    sites = [site for site in declared if SCHEMES[site.scheme].profiled]
    if not sites:
        built = " and ".join(sorted({site.scheme for site in declared})) or "no residual of bathy"
        raise SchemeError(f"the model has no Admin sites ({built}); build it with encoder_scheme or decoder_scheme 'admin'")
    return sites


@contextmanager
def _borrowed_omegas(sites: Sequence[Site]) -> Iterator[None]:
    """A block in which every site after the first of its stack has an ω to set; afterwards all is as before."""
    kept = [(site, site.omega.detach().clone()) for site in sites if isinstance(site.omega, nn.Parameter)]
    lent = [site for site in sites if site.index > 1 and not isinstance(site.omega, nn.Parameter)]
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


def _measure(model: nn.Module, sites: Sequence[Site], batch: Batch, masks: dict[str, Tensor]) -> list[list[float]]:
    """[Var[x], Var[a], ω²] of each site, with every ω set as the pass goes on."""
    rows = {stack: mask.flatten().nonzero().squeeze(1) for stack, mask in masks.items()}
    one = torch.ones((), device=next(model.parameters()).device)
    square = dict.fromkeys(masks, one)  # ω² of the next site, by stack
    incoming: dict[str, Tensor] = {}
    readings: dict[str, Tensor] = {}

    def enter(site: Site, x: Tensor) -> None:
        incoming[site.stack] = variance(x, rows[site.stack])

    def leave(site: Site, a: Tensor) -> None:
        omega2, var_x, var_a = square[site.stack], incoming[site.stack], variance(a, rows[site.stack])
        if isinstance(site.omega, nn.Parameter):
            site.omega.copy_(omega2.sqrt())
        readings[site.name] = torch.stack([var_x, var_a, omega2])
        square[site.stack] = omega2 * var_x + var_a

    handles = [site.on("input", lambda x, site=site: enter(site, x)) for site in sites]  # type: ignore[misc]
    handles += [site.on("branch", lambda a, site=site: leave(site, a)) for site in sites]  # type: ignore[misc]
    try:
        call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack([readings[site.name] for site in sites]).tolist()


def _site_profiles(sites: Sequence[Site], readings: list[list[float]]) -> list[SiteProfile]:
    """Rows of a profile; a value that is not finite is an error which names the first site that has one."""
    rows = []
    for site, (var_x, var_a, omega2) in zip(sites, readings, strict=True):
        if not math.isfinite(var_x + var_a + omega2):
            raise BatchError(
                f"{site.name} has variances {var_x:g} and {var_a:g}: the model overflows there; check weights and dtype"
            )
        rows.append(SiteProfile(site.name, site.stack, var_x, var_a, omega2**0.5, var_a / (omega2 * var_x + var_a)))
    return rows
