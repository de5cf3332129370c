"""Which scheme a model is: its signature beside that of a small model of every scheme with as many layers."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from bathy.clinic.audit.signature import Behaviour, Signature, SiteSignature, signature
from bathy.clinic.probe import examined
from bathy.core.schemes import SCHEMES
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import BathyError

WIDTH = 32
MANY = 96
"""Layers beyond which references are built with this many, and constants extrapolate no further."""
Key = tuple[str, str]
"""Site's kind and role of a matrix."""


@dataclass(frozen=True)
class Reference:
    """A scheme at one depth: the signature of each site, and each matrix's gain relative to the plain initialisation."""

    scheme: str
    sites: dict[tuple[int, int, str], SiteSignature]
    """(stack number, layer, kind) to the site."""
    scale: dict[tuple[int, int, str, str], float]
    """(stack number, layer, kind, role) to the factor on the base gain."""
    final: list[int]


def shape(found: Signature) -> tuple[int, int]:
    """(encoder layers, decoder layers) of the model that stands beside it: a second stack with cross-attention is a decoder."""
    stacks = list(dict.fromkeys(site.stack for site in found.sites))
    depth = {stack: max(site.layer for site in found.sites if site.stack == stack) for stack in stacks}
    crossed = {site.stack for site in found.sites if site.kind == "cross_attention"}
    if len(stacks) == 2 and len(crossed) == 1:
        encoder = next(stack for stack in stacks if stack not in crossed)
        return min(MANY, depth[encoder]), min(MANY, depth[next(iter(crossed))])
    return min(MANY, max(depth.values())), 0


@lru_cache(maxsize=256)
def reference(scheme: str, encoder: int, decoder: int) -> Reference | None:
    """The scheme's small model of that depth, measured as any model is; nothing where it cannot be built."""
    found, plain = _measured(scheme, encoder, decoder), _measured("post_ln", encoder, decoder)
    if found is None or plain is None:
        return None
    numbers = {stack: i for i, stack in enumerate(dict.fromkeys(site.stack for site in found.sites))}
    scale = {
        (numbers[site.stack], site.layer, site.kind, role): gain.std / base.gains[role].std
        for site, base in zip(found.sites, plain.sites, strict=True)
        for role, gain in site.gains.items()
        if base.gains[role].std
    }
    sites = {(numbers[site.stack], site.layer, site.kind): site for site in found.sites}
    return Reference(scheme, sites, scale, list(found.final.values()))


@lru_cache(maxsize=256)
def _measured(scheme: str, encoder: int, decoder: int) -> Signature | None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            config = TransformerConfig(
                vocab=16, width=WIDTH, ffn=2 * WIDTH, heads=2, encoder_layers=encoder, decoder_layers=decoder,
                encoder_scheme=scheme, decoder_scheme=scheme,
            )  # fmt: skip
            model = Transformer(config)
        except (BathyError, ValueError):
            return None
        tokens = torch.randint(4, 16, (2, 8))
    batch = (tokens, tokens) if encoder and decoder else (tokens,)
    with examined(model, batch, planned=(Behaviour,)) as subject:
        return signature(subject)


def admin_omegas(sites: list[SiteSignature]) -> list[float]:
    """Admin's ω of one stack's sites from its own variances: 1, then √(Var[x_0] + Σ_{j<i} Var[a_j])."""
    total = sites[0].entry
    found = [1.0]
    for site in sites[:-1]:
        total += site.variance
        found.append(math.sqrt(max(total, 0.0)))
    return found


@dataclass(frozen=True)
class Pair:
    """A site, the reference's site in its place, and what its shortcut should be multiplied by."""

    site: SiteSignature
    match: SiteSignature
    skip: float
    scale: dict[str, float]
    """Factor on the base gain of each role."""


def pairs(found: Signature, other: Reference) -> list[Pair]:
    """Every site beside the reference's; a profiled scheme's shortcuts follow from the model's own variances."""
    stacks = list(dict.fromkeys(site.stack for site in found.sites))
    result = []
    for number, stack in enumerate(stacks):
        own = [site for site in found.sites if site.stack == stack]
        omegas = admin_omegas(own)
        rank = number if len(other.final) > 1 else 0
        before = 1.0
        for site, omega in zip(own, omegas, strict=True):
            match = other.sites.get((rank, min(site.layer, MANY), site.kind)) or _any(other, rank, site)
            if match is not None:
                where = (rank, match.layer, match.kind)
                roles = {role: other.scale.get((*where, PLAIN_ROLE.get(role, role)), 1.0) for role in site.gains}
                if other.scheme == "admin_rescaled" and before > 0:  # ω is in the norm before, and divided out of what reads it
                    roles = {role: scale / (before if role in READS[site.kind] else 1.0) for role, scale in roles.items()}
                result.append(Pair(site, match, omega if other.scheme == "admin" else match.skip, roles))
            before = site.gamma if math.isfinite(site.gamma) else 1.0
    return result


READS = {"self_attention": "qkv", "cross_attention": "q", "ffn": ("fc1", "gate"), "unknown": ()}
"""Roles that read the stream, by kind."""
PLAIN_ROLE = {"gate": "fc1", "fc1.2": "fc1", "fc1.1": "fc1"}
"""Roles of gated units to those of the reference's plain feed-forward."""


def _any(other: Reference, rank: int, site: SiteSignature) -> SiteSignature | None:
    """A site of the reference's in the same layer, for a kind that the reference does not have."""
    return next((each for (number, layer, _), each in other.sites.items() if number == rank and layer == site.layer), None)


EXACT = 0.03
"""|log| of a shortcut's factor over a scheme's constant within which it is that constant."""
INEXACT = 0.2
"""Distance that is added where a factor is near a constant but not it."""


def distance(found: Signature, other: Reference) -> float:
    """How far a model is from a scheme: structure counts most, then factors on shortcut and branch, then gains."""
    both = pairs(found, other)
    if not both:
        return math.inf
    scores = []
    for pair in both:
        site, match = pair.site, pair.match
        score = 3.0 * (site.placement != match.placement) + 3.0 * (site.normed != match.normed)
        score += 2.0 * (site.silent != match.silent) + 2.0 * (site.mirrored != match.mirrored)
        score += 2.0 * ((site.inner > 0) != (match.inner > 0)) * (site.kind == "ffn" or match.inner > 0)
        off = apart(site.skip, pair.skip)
        score += off + INEXACT * (off > EXACT and site.sharp) + _factor_apart(site, match)
        score += apart(site.reads, match.reads) if site.placement in ("pre", "both") else 0.0
        score += apart(site.size, match.size) if site.normed and match.normed else 0.0
        score += max(0.0, 0.3 - apart(site.gamma, 1.0)) if other.scheme == "admin_rescaled" else 0.3 * apart(site.gamma, 1.0)
        scores.append(score)
    final = sum(bool(a) != bool(b) for a, b in zip(found.final.values(), other.final, strict=False))
    return statistics.fmean(scores) + 0.5 * final + 0.5 * (1 - convention(both, held=False).explained)


@dataclass(frozen=True)
class Drawn:
    """How a model's matrices were drawn: the convention, its factor, and the share of the matrices that it explains."""

    name: str
    factor: float
    explained: float
    scaled: bool = False
    """Whether the scheme scales matrices, so that a mistake may concern most of them."""

    @property
    def known(self) -> bool:
        """Whether single matrices can be judged by it: three quarters fit; of Xavier's own sizes, a third."""
        absolute = self.name.startswith("xavier") and abs(math.log(self.factor)) < ALIKE
        return self.explained >= (0.3 if absolute else 0.75)


ALIKE = 0.06
"""|log| within which two deviations are the same."""


def convention(both: list[Pair], held: bool | None = None) -> Drawn:
    """The convention and the factor that explain most matrices; Xavier's own factor, 1, counts a little more.

    `held`: whether the model is held to the scheme's own initialisation; else where it is this scheme on purpose.
    """
    best, score = Drawn("", 1.0, -1.0), -1.0
    expected = intended(both) if held is None else held
    for name in CONVENTIONS:
        rest = unexplained(both, name)
        if not rest:  # no site has a matrix: convolutions only
            return Drawn("", 1.0, 0.0)
        roles = {role: [v for (_, r), v in rest.items() if r == role and v > 0] for role in {role for _, role in rest}}
        factors = [statistics.median(values) for values in roles.values() if values] + [1.0] * name.startswith("xavier")
        for factor in factors:
            share = sum(v > 0 and abs(math.log(v / factor)) < ALIKE for v in rest.values()) / len(rest)
            own = 1.0 if expected and share > 0.3 else 0.25  # a scheme that is meant comes with its initialisation
            bonus = own if name.startswith("xavier") and abs(math.log(factor)) < ALIKE and share > 0.1 else 0.0
            if share + bonus > score:
                best, score = Drawn(name, factor, share), share + bonus
    scaled = any(scale > 0 and abs(math.log(scale)) > 0.1 for pair in both for scale in pair.scale.values())
    return Drawn(best.name, best.factor, best.explained, scaled)


CONVENTIONS = ("xavier_fused", "xavier", "normal", "fan_in", "torch", "normal_scaled", "xavier_scaled")
"""q, k, v as one Xavier matrix; Xavier; one deviation for all; 1/√inputs; torch's own layers (q, k, v as one Xavier matrix,
the others 1/√(3 · inputs)); and those with output matrices × 1/√n."""


def unexplained(both: list[Pair], name: str) -> dict[tuple[str, str], float]:
    """Each matrix's deviation over what the convention and the scheme give it, by site and role, up to one common factor."""
    count = max(len([pair for pair in both if pair.site.stack == stack]) for stack in {pair.site.stack for pair in both})
    found = {}
    for pair in both:
        for role, gain in pair.site.gains.items():
            outputs, inputs = gain.shape
            expected = pair.scale[role]
            if name.startswith("xavier"):
                expected *= math.sqrt(2 / (inputs + outputs))
                expected *= math.sqrt(0.5) if name == "xavier_fused" and set(role) <= set("qkv") else 1.0
            elif name == "torch" and set(role) <= set("qkv"):
                expected *= math.sqrt(1 / (inputs + outputs))
            elif name == "torch":
                expected *= 1 / math.sqrt(3 * inputs)
            elif name == "fan_in":
                expected *= 1 / math.sqrt(inputs)
            expected *= count**-0.5 if name.endswith("scaled") and role in ("out", "fc2") else 1.0
            if expected > 0:
                found[pair.site.name, role] = gain.std / expected
    return found


SURE = 0.05
"""Distance within which a model is a scheme, whatever it says of itself."""
DECLARED_NEAR = 2.0
"""Distance within which a model that declares a scheme is held to it."""


def identify(found: Signature) -> tuple[Reference | None, float]:
    """The nearest scheme and its distance; the scheme that a model declares, unless it is far from it or exactly another."""
    references = [each for name in SCHEMES if (each := reference(name, *shape(found))) is not None]
    scored = [(far - own_factors(found, each), far, each) for each in references for far in [distance(found, each)]]
    if not scored:
        return None, math.inf
    _, far, best = min(scored, key=lambda row: row[0])
    told = {site.scheme for site in found.sites}
    declared = [(far, each) for _, far, each in scored if {each.scheme} == told and far < DECLARED_NEAR]
    if declared and far > SURE:
        far, best = declared[0]
    return best, far


def own_factors(found: Signature, other: Reference) -> float:
    """1 where this scheme's factors on matrices explain sizes that no plain draw does: then another shortcut is a mistake."""
    both = pairs(found, other)
    drawn = convention(both) if both else None
    return float(drawn is not None and drawn.scaled and drawn.explained >= max(0.75, plain(both).explained + 0.2))


def intended(both: list[Pair]) -> bool:
    """Whether the model is this scheme on purpose: it says so, or has its constant, other than 1, on every shortcut."""
    if all(pair.site.declared for pair in both):
        return True
    exact = all(math.isfinite(pair.site.skip) and apart(pair.site.skip, pair.skip) < EXACT for pair in both)
    return exact and any(apart(pair.skip, 1.0) > 0.1 for pair in both)


def plain(both: list[Pair]) -> Drawn:
    """How the matrices were drawn if the scheme has no factors on them."""
    return convention([replace(pair, scale=dict.fromkeys(pair.scale, 1.0)) for pair in both])


def _factor_apart(site: SiteSignature, match: SiteSignature) -> float:
    """How far branch factors are apart; a function after the last matrix moves one somewhat, which does not count."""
    found = 0.0 if site.normed else apart(site.branch, match.branch)
    return found if found > 0.4 else 0.0


def apart(a: float, b: float) -> float:
    """How far two factors are apart, between 0 and 1; 0 where one is unknown."""
    if not (math.isfinite(a) and math.isfinite(b)) or (abs(a) < 1e-9 and abs(b) < 1e-9):
        return 0.0
    if a * b <= 0:
        return 1.0
    return min(1.0, abs(math.log(a / b)))
