"""What a model is by its behaviour: norms, factors on shortcut and branch, and initial gains of every residual site."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bathy.clinic.measures import real
from bathy.clinic.probe import Recorder, Subject
from bathy.core.residual import Matrix
from bathy.sites.graph import is_norm
from bathy.sites.site import Moment, Site

STEADY = 0.01
"""Spread of a branch's size over tokens below which a norm must end it."""
UNEVEN = 0.5
"""Spread over dimensions from which on a sum is not shortcut plus branch as they were watched."""


@dataclass(frozen=True)
class Gain:
    """One matrix at the start."""

    std: float
    shape: tuple[int, int]
    """Outputs × inputs."""
    bias: float
    """Largest |bias|; 0 without one."""

    @property
    def xavier(self) -> float:
        """Its deviation relative to Xavier's, √(2 / (inputs + outputs))."""
        return self.std / math.sqrt(2 / sum(self.shape))


@dataclass(frozen=True)
class SiteSignature:
    """One residual site, as it behaves on a batch."""

    name: str
    stack: str
    kind: str
    layer: int
    index: int
    placement: str
    """Where norms stand: post, pre, both or none."""
    skip: float
    """Factor on the shortcut, fitted to the sum; NaN where it cannot be watched."""
    spread: float
    """Largest deviation of single dimensions from it, relative."""
    size: float
    """Root mean square of the branch's output."""
    variance: float
    """Var[a]."""
    entry: float
    """Var[x]."""
    normed: bool
    """Whether the branch ends in a norm: every token of it has the same size."""
    inner: int
    """Norms inside the branch, besides those before it and at its end."""
    reads: float
    """Root mean square of what the first matrix of the branch reads; NaN where it cannot be watched."""
    branch: float
    """Size of the branch over that of its last matrix's output: the factor on the branch; NaN where it cannot be watched."""
    mirrored: bool
    """Whether the second half of the feed-forward's first matrix is the negative of the first."""
    gamma: float
    """Mean |γ| of the norm after the sum; NaN without one."""
    gains: dict[str, Gain] = field(default_factory=dict)
    scheme: str = ""
    """Scheme that the model itself says this site has; empty where it was found, and its norms may be seen at its neighbour."""
    sharp: bool = True
    """Whether the branch was watched where it is added, so that the shortcut's factor is exact."""

    @property
    def declared(self) -> bool:
        """Whether the model itself says what this site is."""
        return bool(self.scheme)

    @property
    def even(self) -> bool:
        """Whether the shortcut's factor can be told: the sum is as watched in every dimension, or the branch is small."""
        if self.sharp:
            return self.declared or not self.spread > UNEVEN
        return self.size < UNEVEN * math.sqrt(max(self.entry, 0.0))

    @property
    def silent(self) -> bool:
        """Whether the branch adds nothing at the start."""
        return self.size < 1e-6 * math.sqrt(self.entry + 1e-30)


@dataclass(frozen=True)
class Signature:
    """A whole model: its sites, what follows each stack, and its norms."""

    sites: list[SiteSignature]
    final: dict[str, int]
    """Norms that read what a stack's last site gives, by stack."""
    bare: set[str]
    """Stacks after whose last site a matrix runs, but no norm of any kind: not even on a pooled token."""
    gamma: dict[str, float]
    """Mean size of every norm's γ, as measured."""
    uses: dict[str, list[str]]
    """Sites in which each norm runs, in order."""
    clones: list[tuple[str, str]]
    """Pairs of sites whose first matrices start with the same values."""
    ties: list[tuple[str, str]]
    """Pairs of sites in different layers whose first matrices are one parameter."""
    eps: dict[str, float]
    """What every norm adds to the variance."""


class Behaviour(Recorder):
    """Watches sites, the modules that read the stream, and every norm."""

    moments: tuple[Moment, ...] = ("input", "branch", "sum", "output")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.now: dict[Site, dict[Moment, Tensor]] = {}
        self.found: dict[Site, dict[str, float]] = {}
        self.reads: dict[Site, float] = {}
        self.gives: dict[Site, float] = {}
        self.norms: list[tuple[str, Site | None, bool, bool]] = []
        """(norm, site entered last, whether its last matrix has run, whether its sum was seen), in order of execution."""
        self.aside: set[int] = set()
        """Numbers in `norms` of those that read a whole site's output and not the next site's input: heads, not layers."""
        self.final: Counter[str] = Counter()
        self.stream: Tensor | None = None
        """What the last site gave, …"""
        self.giver: Site | None = None
        """… and which one it was."""
        self.heads: set[str] = set()
        """Sites after whose sum a matrix ran."""
        self.inside: Site | None = None
        self.summed = False

    def hear(self, site: Site, moment: Moment, x: Tensor) -> None:
        """Fit the factors when a site's sum is known."""
        if moment == "input":
            self.inside, self.summed = site, False
        if moment == "output":
            self.stream, self.giver = x, site
            return
        self.now.setdefault(site, {})[moment] = real(x, self.subject.real.of(site, x))
        if moment == "sum":
            self.summed = True
            if {"input", "branch"} <= self.now[site].keys():
                x, a, b = (self.now[site][each] for each in ("input", "branch", "sum"))
                self.found[site] = factors(x, a, b) if x.shape == a.shape == b.shape else sizes(x, a)
                if "branch" not in getattr(site, "taps", ("branch",)) and x.shape == b.shape:
                    self.found[site]["skip"] = _projected(x, b)  # the branch is known as b − x: the factor comes from x alone
            self.now.pop(site)

    def listening(self) -> AbstractContextManager[Any]:
        """Hooks on norms, and on the modules whose matrices read the stream."""
        hooks = ExitStack()
        for name, module in self.subject.model.named_modules():
            if is_norm(module):
                hooks.callback(module.register_forward_hook(partial(self._norm, name)).remove)
            elif isinstance(module, nn.Linear):
                hooks.callback(module.register_forward_hook(self._matrix).remove)
        for site in self.subject.sites:
            for matrix in [matrix for matrix in site.matrices if matrix.reads][:1]:
                hooks.callback(matrix.module.register_forward_pre_hook(partial(self._read, site)).remove)
            for matrix in [matrix for matrix in site.matrices if matrix.role in ("out", "fc2")][-1:]:
                hooks.callback(matrix.module.register_forward_hook(partial(self._gave, site)).remove)
        return hooks

    def _norm(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        self.norms.append((name, self.inside, self.inside in self.gives, self.summed))
        x = args[0] if args and isinstance(args[0], Tensor) else None
        given = self.stream if self.giver is self.inside else None
        if self.summed and self.inside and x is not None and given is not None and x.numel() == given.numel():
            last = torch.equal(x.reshape(-1), given.reshape(-1))
            self.final[self.inside.name] += last
            self.aside |= {len(self.norms) - 1} if last else set()

    def _matrix(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.summed and self.inside:
            self.heads.add(self.inside.name)

    def _read(self, site: Site, module: nn.Module, args: Any) -> None:
        if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
            self.reads.setdefault(site, float(args[0].detach().float().square().mean().sqrt()))

    def _gave(self, site: Site, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and self.inside is site:
            rows = self.subject.real.rows.get(site.stack)
            flat = output.detach().float().flatten(0, -2)
            chosen = flat if rows is None or (rows.numel() and int(rows.max()) >= len(flat)) else flat[rows]
            self.gives.setdefault(site, float(chosen.square().mean().sqrt()))


def _projected(x: Tensor, b: Tensor) -> float:
    """The factor on x in b where the branch is not known but independent of x, dimension by dimension centred."""
    x, b = x - x.mean(0), b - b.mean(0)
    return float((b * x).sum() / x.square().sum().clamp_min(1e-30))


def factors(x: Tensor, a: Tensor, b: Tensor) -> dict[str, float]:
    """Shortcut factor s of b = s·x + a, its spread over dimensions, and sizes of branch and stream."""
    rest = b - a
    by_dimension = (rest * x).sum(0) / x.square().sum(0).clamp_min(1e-12)
    skip = float((rest * x).sum() / x.square().sum().clamp_min(1e-30))
    return {"skip": skip, "spread": float((by_dimension - skip).abs().max() / max(abs(skip), 1e-12))} | sizes(x, a)


def sizes(x: Tensor, a: Tensor) -> dict[str, float]:
    """Sizes of branch and stream: all that is known where the shortcut goes through a matrix, so that it has no factor."""
    of_token = a.square().mean(1).sqrt()
    return {
        "size": float(a.square().mean().sqrt()),
        "steady": float(of_token.std() / of_token.mean().clamp_min(1e-30)) if len(of_token) > 1 else 1.0,
        "variance": float(a.var(correction=0)),
        "entry": float(x.var(correction=0)),
    }


def signature(subject: Subject) -> Signature:
    """The model's signature from one pass."""
    seen = subject.recorded(Behaviour)
    sites = [_site(site, seen) for site in subject.sites]
    last = {stack: own[-1] for stack, own in subject.stacks.items()}
    normed = {at for _, at, _, summed in seen.norms if summed}
    bare = {stack for stack, site in last.items() if site.name in seen.heads and site not in normed}
    return Signature(
        sites, _final(subject, seen), bare, gammas(subject.model), _uses(seen), *_clones(subject.sites), _eps(subject.model)
    )


def _site(site: Site, seen: Behaviour) -> SiteSignature:
    found = seen.found.get(site, {})
    value = {name: found.get(name, math.nan) for name in ("skip", "spread", "size", "variance", "entry")}
    own = [after for _, at, after, summed in seen.norms if at is site and not summed]
    before = site.placement in ("pre", "both")
    normed = any(own) if site in seen.gives else len(own) > before and found.get("steady", 1.0) < STEADY
    inner = max(0, len(own) - normed - before)
    place = {name: getattr(site, name) for name in ("name", "stack", "kind", "layer", "index", "placement")}
    gains = {matrix.role: gain(matrix) for matrix in site.matrices if matrix.weight.dim() == 2}
    reads = seen.reads.get(site, math.nan)
    gave = seen.gives.get(site, math.nan)
    return SiteSignature(
        **place, **value, normed=normed, inner=inner, reads=reads, gains=gains,  # type: ignore[arg-type]
        scheme=site.scheme, sharp="branch" in getattr(site, "taps", ("branch",)),
        branch=value["size"] / gave if gave else math.nan, mirrored=_mirrored(site),
        gamma=math.nan if site.post is None else next(iter(gammas(site.post).values()), math.nan),
    )  # fmt: skip


def _mirrored(site: Site) -> bool:
    weights = [matrix.weight.detach() for matrix in site.matrices if matrix.role == "fc1"]
    half = len(weights[0]) // 2 if weights else 0
    return bool(half) and torch.equal(weights[0][half : 2 * half], -weights[0][:half]) and bool(weights[0].any())


def gain(matrix: Matrix) -> Gain:
    """The matrix at the start."""
    weight = matrix.weight.detach().float()
    bias = matrix.bias
    largest = 0.0 if bias is None or not bias.numel() else float(bias.detach().abs().max())
    return Gain(float(weight.std()), (weight.shape[0], weight.shape[1]), largest)


def _final(subject: Subject, seen: Behaviour) -> dict[str, int]:
    """Norms that read what each stack's last site gives."""
    found = {}
    for stack, sites in subject.stacks.items():
        found[stack] = seen.final[sites[-1].name]
    return found


def _uses(seen: Behaviour) -> dict[str, list[str]]:
    uses: dict[str, list[str]] = {}
    for number, (name, at, _, _) in enumerate(seen.norms):
        uses.setdefault(name, []).append("" if at is None or number in seen.aside else at.name)
    return uses


@torch.no_grad()
def gammas(model: nn.Module) -> dict[str, float]:
    """Mean |γ| of every norm, asked with ±1: some norms store γ − 1, so the parameter does not tell."""
    found = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if is_norm(module) and isinstance(weight, Tensor) and weight.dim() == 1:
            signs = torch.ones(1, weight.numel(), dtype=weight.dtype, device=weight.device)
            signs[:, 1::2] = -1
            try:
                rises = [(module.forward(x) - module.forward(0 * signs)).float().abs() for x in (signs, -signs)]
                found[name] = float(torch.maximum(*rises).mean())  # an activation in the norm leaves one sign of the two
            except Exception:  # somebody's norm, which takes more than a stream or something else: only torch's own are known
                if isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d)):
                    found[name] = float(weight.float().abs().mean())
    return found


def _eps(model: nn.Module) -> dict[str, float]:
    values = {name: getattr(module, "eps", None) for name, module in model.named_modules() if is_norm(module)}
    return {name: value for name, value in values.items() if isinstance(value, float)}


def _clones(sites: Sequence[Site]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Sites of one kind and stack in different layers whose first matrices are equal but not the same, and those that are."""
    first: dict[tuple[str, str], Site] = {}
    owner: dict[int, Site] = {}
    found, ties = [], []
    for site in sites:
        known = first.setdefault((site.stack, site.kind), site)
        if site.matrices:
            other = owner.setdefault(id(site.matrices[0].parameter), site)
            ties += [(other.name, site.name)] if (other.stack, other.layer) != (site.stack, site.layer) else []
        if known.layer == site.layer or not (known.matrices and site.matrices):
            continue
        a, b = known.matrices[0], site.matrices[0]
        same = a.weight.shape == b.weight.shape and torch.equal(a.weight, b.weight) and bool(a.weight.any())
        if same and a.parameter is not b.parameter:  # gates that start at zero in every layer are no copies
            found.append((known.name, site.name))
    return found, ties


def majority(values: Sequence[Any]) -> Any:
    """The most common value."""
    return Counter(values).most_common(1)[0][0]
