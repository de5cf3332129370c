"""Admin: profile one batch, set ω so that the output changes by O(log N) at the start (Liu et al., 2020).

    ω_1 = 1;    ω_i² = Var[ω_{i-1} · x_{i-2}] + Var[a_{i-1}]    for i ≥ 2

x_0 is the stack's input and a_i the branch's output, so ω_i² telescopes to Var[x_0] + Σ_{0<j<i} Var[a_j]. Each ω is set
while the one forward pass goes on. Encoder and decoder are two chains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bathy.console import table
from bathy.core.residual import current_name
from bathy.core.schemes import SCHEMES
from bathy.errors import BatchError, CheckpointError, ModelError, SchemeError
from bathy.files import origin, write_json
from bathy.pages.shown import Part, Shown
from bathy.sites.batch import Batch, call, on_device_of, undisturbed
from bathy.sites.real_tokens import ALL, Mask, RealTokens, first_tokens
from bathy.sites.site import Site, declared_sites, variance
from bathy.sites.spots import Seen, spotted
from bathy.sites.trace import find_sites

PROFILE_TOKENS = 8192
"""Tokens that a profile uses at most, as the paper does."""
BARE_SCHEMES = {"post_ln", "pre_ln", "looklinear"}
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
    """How often a stream passes the site in one pass."""
    skip: float = 1.0
    """Constant that the model itself puts on the shortcut."""
    weights: bool = True
    """Whether the branch has weights, whose change could change its output."""

    @property
    def plain_beta2(self) -> float:
        """β² without ω: Var[a] / (skip² Var[x] + Var[a]); 0 for a branch without weights."""
        total = self.skip**2 * self.input_variance + self.branch_variance
        return self.branch_variance / total if self.weights and total > 0 else 0.0


@dataclass(frozen=True)
class Treatment:
    """What was done with one stack, and Σ β² over its sites before and after, both measured on the batch."""

    stack: str
    remedy: str
    before: float
    after: float
    kept: bool = True
    """False where the remedy did not lower Σ β² and was undone."""
    why: str = ""
    """Why it did not help, as far as that is known, and the next best step."""

    def __str__(self) -> str:
        what = f"{self.stack}: {self.remedy}, Σβ² {self.before:.3g} → {self.after:.3g}"
        return what if self.kept else f"{what}: it did not help and was undone; the stack is as it was{self.why}"


@dataclass(frozen=True)
class Profile(Shown):
    """ω and variances of every site, from one batch. Prints as a table, saves and loads as JSON."""

    sites: list[SiteProfile]
    tokens: dict[str, int]
    """Real tokens the statistics are over, by stack."""
    padding: dict[str, str] = field(default_factory=dict)
    """How it was known which tokens are real, by stack: by which mask, by the padding id, or all positions."""
    notes: list[str] = field(default_factory=list)
    """What stabilising did that was not plainly asked for, or found not worth doing."""
    treatments: list[Treatment] = field(default_factory=list)
    """The remedy of each stack with what it did, where the model was stabilised."""
    groups: dict[str, str] = field(default_factory=dict)
    """For stacks that are pieces of one list of layers, the name of that list."""
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
            sites = [SiteProfile(**site | {"name": current_name(site["name"])}) for site in value["sites"]]
            return cls(**value | {"sites": sites})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is not a profile ({error}); profile(model, batch).save(path) writes one") from error

    def change(self, stack: str) -> float:
        """Σ β² over the stack's sites without ω: Var[a] / (Var[x] + Var[a]), to which Theorem 2 sets the output change.

        Stacks that are pieces of one list of layers are summed.
        """
        return sum(site.calls * site.plain_beta2 for site in self._together(stack))

    def sublayers(self, stack: str) -> int:
        """n: residual sub-layers of a stack, as often as they run; pieces of one list of layers count together."""
        return sum(site.calls for site in self._together(stack))

    def _together(self, stack: str) -> list[SiteProfile]:
        """The sites of a stack and of the other pieces of its list of layers."""
        group = self.groups.get(stack)
        stacks = {stack} | {other for other, name in self.groups.items() if name == group and group}
        return [site for site in self.sites if site.stack in stacks]

    def remaining_change(self, stack: str) -> float:
        """Σ β² over the stack's own sites with the ω they have."""
        return sum(site.calls * site.beta2 for site in self.sites if site.stack == stack and site.weights)

    def parts(self) -> list[Part]:
        """The table, what was done to each stack, and notes."""
        rows = [(site.name, site.input_variance, site.branch_variance, site.omega, site.beta2) for site in self.sites]
        known = {stack: f" ({name if name == ALL else f'by {name}'})" for stack, name in self.padding.items()}
        counts = ", ".join(f"{count} {stack} tokens{known.get(stack, '')}" for stack, count in self.tokens.items())
        shown = table(f"profile over {counts}", ["site", "Var[x]", "Var[a]", "ω", "β²"], rows)
        return [shown, *map(str, self.treatments), *self.notes]


def profile(model: nn.Module, batch: Batch, tokens: int = PROFILE_TOKENS, mask: Mask | None = None) -> Profile:
    """The ω that Admin gives each site, from one forward pass in training mode over at most `tokens` real tokens of the batch.

    Real are the tokens that `mask` (b t) says, else the batch's attention or key-padding mask, else all. Weights, buffers, mode
    and random state stay as they were.
    """
    batch = on_device_of(model, batch)
    return profile_sites(model, profiled_sites(model, batch), batch, tokens, mask)


def profile_sites(
    model: nn.Module, sites: Sequence[Site], batch: Batch, tokens: int, mask: Mask | None = None, set_omega: bool = True
) -> Profile:
    """The profile of these sites; unless `set_omega`, with the ω that they have.

    Where layers are dropped at random, so that some did not run, the pass is made in evaluation mode.
    """
    seen, unseen = [site for site in sites if not _unseen(site)], [site for site in sites if _unseen(site)]
    batch, real = first_tokens(model, batch, sites, tokens, mask)
    shown, notes = _measure_unseen(model, unseen, batch, real)
    if not seen and not shown:
        raise ModelError(
            f"none of the {len(sites)} sites can be watched; of the first, {notes[0]}. Let a module take or give x and f(x), "
            "e.g. nn.Identity() around them, so that hooks can see them"
        )
    with _borrowed_omegas(seen, set_omega), undisturbed(model), torch.no_grad():
        readings = _measure(model.train(), seen, batch, real, set_omega)
        if not all(readings.values()):
            notes.append("layers are dropped at random in training: profiled in evaluation mode, where all run")
            readings = _measure(model.eval(), seen, batch, real, set_omega)
    real.check()
    readings |= shown
    rows = _site_profiles([site for site in sites if site.name in readings], readings)
    return Profile(rows, real.counts, real.source, notes, groups=getattr(sites, "groups", {}), origin=origin())


def _unseen(site: Site) -> str:
    """Why a site cannot be profiled; empty where it can."""
    return next((f"its {moment}: {site.unwatched[moment]}" for moment in ("input", "branch") if moment in site.unwatched), "")


def _measure_unseen(
    model: nn.Module, unseen: Sequence[Site], batch: Batch, real: RealTokens
) -> tuple[dict[str, list[Tensor]], list[str]]:
    """[Var[x], Var[a], 1/ω²] of sites that no module shows, from a pass in evaluation mode, and what to say of them."""
    kept = spotted(model, batch, [seen for site in unseen for seen in _spots(site)]) if unseen else {}
    readings: dict[str, list[Tensor]] = {}
    for site in unseen:
        found = [moments for seen in _spots(site) if (moments := seen.moments(kept, site.skip))]
        for x, a in found if len(found) == site.calls else ():
            sizes = variance(x, real.of(site, x)) * site.skip**2, variance(a, real.of(site, a)), torch.ones((), device=x.device)
            readings.setdefault(site.name, []).append(torch.stack(sizes))
    notes = [f"{site.name} is not measured: {_unseen(site)}" for site in unseen if site.name not in readings]
    if readings:
        notes.append(
            f"measured in evaluation mode, as no module shows them: {len(readings)} sites, {next(iter(readings))} first"
        )
    return readings, notes


def _spots(site: Site) -> Sequence[Seen]:
    return getattr(site, "spots", ())


def needs_profile(model: nn.Module) -> bool:
    """Whether the model is built with sites whose ω a first batch must set: any stack is enough, the others are left alone."""
    return any(SCHEMES[site.scheme].profiled for site in declared_sites(model))


def profiled_sites(model: nn.Module, batch: Batch) -> Sequence[Site]:
    """The sites whose ω a batch sets: those built for it, else what tracing finds; our models built otherwise are an error."""
    declared = declared_sites(model)
    sites = [site for site in declared if SCHEMES[site.scheme].profiled]
    built = sorted({site.scheme for site in declared} - BARE_SCHEMES)
    if built and not sites:
        raise SchemeError(
            f"the model has no Admin sites ({' and '.join(built)}); build it with encoder_scheme or decoder_scheme 'admin'"
        )
    return sites or find_sites(model, batch)


@contextmanager
def _borrowed_omegas(sites: Sequence[Site], lend: bool) -> Iterator[None]:
    """A block in which, with `lend`, every Post-LN site that is to have an ω has one to set; afterwards all is as before."""
    kept = [(site, site.omega.detach().clone()) for site in sites if isinstance(site.omega, nn.Parameter)]
    lent = [
        site for site in sites if lend and site.free and not site.obstacle and isinstance(site.omega, float) and site.omega == 1
    ]
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


def _measure(
    model: nn.Module, sites: Sequence[Site], batch: Batch, real: RealTokens, set_omega: bool
) -> dict[str, list[Tensor]]:
    """[Var[x], Var[a], 1/ω²] of each run of each site, with every ω set as the pass goes on, if `set_omega`.

    A foreign model's ω is at least 1: where its stack begins with a variance far below 1 (embeddings of deviation 0.02, no
    norm), a smaller ω would give the branches more weight than they have in the plain model.
    """
    square: dict[tuple[str, int], Tensor] = {}  # ω² of the next site, by stack and stream
    incoming: dict[str, Tensor] = {}
    readings: dict[str, list[Tensor]] = {site.name: [] for site in sites}

    def enter(site: Site, x: Tensor) -> None:
        incoming[site.name] = variance(x, real.of(site, x)) * site.skip**2

    def leave(site: Site, a: Tensor) -> None:
        var_x, var_a = incoming[site.name], variance(a, real.of(site, a))
        omega, stream = site.omega, (site.stack, site.stream(len(readings[site.name])))
        if not isinstance(omega, nn.Parameter):
            omega2 = torch.full_like(var_x, omega**2)
        elif set_omega:
            omega2 = square.get(stream, torch.ones_like(var_x))
            omega.copy_(omega2.sqrt())
        else:
            omega2 = omega.float().square().mean()
        readings[site.name].append(torch.stack([var_x, var_a, 1 / omega2]))
        square[stream] = (omega2 * var_x + var_a).clamp(min=0.0 if site.scheme else 1.0)

    with ExitStack() as handles:
        for site in sites:
            handles.callback(site.on("input", partial(enter, site)).remove)
            handles.callback(site.on("branch", partial(leave, site)).remove)
        call(model, batch)
    return readings


def _site_profiles(sites: Sequence[Site], readings: dict[str, list[Tensor]]) -> list[SiteProfile]:
    """Rows of a profile; a value that is not finite is an error which names the first site that has one.

    Where one pass runs a site several times, its variances are means and ω² is the harmonic mean, which keeps Σ 1/ω².
    """
    rows = []
    for site in sites:
        if not readings[site.name]:
            raise ModelError(f"{site.name} did not run when its model was profiled; give a batch that uses all of the model")
        var_x, var_a, inverse = torch.stack(readings[site.name]).mean(0).tolist()
        if not math.isfinite(var_x + var_a + inverse) or not inverse:
            raise BatchError(
                f"{site.name} has variances {var_x:g} and {var_a:g}: the model overflows there; check weights and dtype"
            )
        total = var_x / inverse + var_a
        beta2 = var_a / total if total > 0 else 0.0
        row = SiteProfile(site.name, site.stack, var_x / site.skip**2, var_a, inverse**-0.5, beta2, site.repeats)
        rows.append(replace(row, skip=site.skip, weights=bool(site.matrices or site.outputs)))
    return rows
