"""Where a model deviates: from the scheme it was recognised as, and from its own other layers."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bathy.clinic.audit.reference import DECLARED_NEAR, Pair, Reference, apart, convention, intended, pairs, plain, unexplained
from bathy.clinic.audit.signature import Signature, SiteSignature, majority

FACTOR = 0.03
"""|log| of a factor over what it should be."""
GAIN = math.log(1.25)
"""|log| of a matrix's deviation over what it should be, where the initialisation was recognised."""
OUTLIER = math.log(1.4)
"""|log| of a layer's over its neighbours', in any initialisation."""
FINE = 0.1
"""The same in a model that declares its sites, where sizes are drawn as ours are; more for matrices of few numbers."""
NEAR = 1.0
"""Distance to a scheme within which its constants are expected of a model that does not declare its sites."""
EPS = 0.05
"""What a norm may add to the variance."""
GAMMA = math.log(1.9)
"""|log| of a norm's γ over that of the others in its place."""
FEW = 0.34
"""Share of the layers that may be outliers; more of them are a design."""
BLURRED = math.log(2.5)
"""|log| of a branch's factor over its neighbours' in a model whose branches were found: routing and gates move it."""


@dataclass(frozen=True)
class Deviation:
    """One thing that differs, where, why it matters and what to do."""

    name: str
    where: str
    found: str
    expected: str
    why: str
    advice: str

    def __str__(self) -> str:
        return f"{self.where}: {self.found}, expected {self.expected}. {self.why} {self.advice}"


WHY: dict[str, tuple[str, str]] = {
    "norm_placement": ("This layer's stream has another scale than its neighbours'.", "Give it the norm of the other layers."),
    "shortcut_factor": ("One layer passes on its input at another scale.", "Use the scheme's factor."),
    "shortcut_constant": ("The constant belongs to another depth or scheme.", "Compute it from this model's number of layers."),
    "branch_factor": ("The branch starts at another size than the scheme says.", "Use the scheme's factor."),
    "input_factor": ("The branch reads the stream at another scale than the scheme says.", "Use the scheme's factor."),
    "branch_norm": ("The branch's size is no longer controlled.", "End it in the norm of the other layers."),
    "inner_norm": ("A norm inside the branch is missing, or one too many.", "Build the branch as in the other layers."),
    "gain": ("The matrix starts at another size than the scheme says.", "Check the role and the sign of the exponent."),
    "gain_inverted": ("The scheme shrinks this matrix; here it is enlarged.", "Use the gain itself, not its inverse."),
    "gain_on_wrong_matrix": ("The factor meant for the branch's output matrix is on another one.", "Scale the output matrix."),
    "layer_gain": ("One layer starts at another size than its neighbours.", "Initialise all layers alike."),
    "zero_matrix": ("The branch adds nothing and its first matrices get no gradient.", "Initialise it as in the other layers."),
    "bias": ("A constant is added to every token.", "Start biases at zero, as in the other layers."),
    "norm_gamma_zero": ("What follows the norm sees the same for every token.", "Start γ at 1."),
    "norm_eps": ("The norm divides by this constant and not by the stream's size.", "Use an eps of 1e-5 or less."),
    "tied_layers": ("Layers that should be independent are one and the same.", "Build each layer by itself."),
    "norm_gamma": ("The norm scales the stream unlike the others.", "Start γ at 1."),
    "shared_norm": ("Layers that should be independent share γ and ν.", "Make one norm for each site."),
    "cloned_layers": ("The layers start as copies and get the same first updates.", "Initialise each layer by itself."),
    "final_norm": ("The scheme's stream grows with depth, and a norm must end it; after Post-LN it is one too many.",
                   "Put one norm after the stack's last layer, if the scheme has it."),
    "mirror": ("The feed-forward is not linear at the start.", "Mirror both matrices."),
}  # fmt: skip
"""Name of a deviation to why it matters and what to do."""


def deviations(found: Signature, other: Reference | None, far: float) -> list[Deviation]:
    """All of them, in the order of the model."""
    result = [*norms(found), *clones(found), *biases(found)]
    declared = all(site.declared for site in found.sites)
    near = other is not None and far < (DECLARED_NEAR if declared else NEAR)
    if other is not None and near and declared:
        both = pairs(found, other)
        result += [*factors(both), *gains(both, FINE), *no_gains(both), *set_biases(both), *final(found, other)]
    elif other is not None and near:
        result += [*found_factors(found, other), *final(found, other)]
    else:
        result += own_layers(found)
    if other is None or not near or not declared or not convention(pairs(found, other)).known:
        result += layer_gains(found)
    sure = norms_differ(found)
    return [each for each in dict.fromkeys(result) if each.name not in BY_NORMS or sure(each.where)]


BY_NORMS = ("norm_placement", "branch_norm", "inner_norm")
"""Deviations that rest on which site a norm belongs to."""


def norms_differ(found: Signature) -> Callable[[str], bool]:
    """Whether a site is declared, or its layer runs more or fewer norms than most others: then its norms do differ."""
    layers = {site.name: (site.stack, site.layer) for site in found.sites}
    counts: dict[tuple[str, int], int] = dict.fromkeys(layers.values(), 0)
    for uses in found.uses.values():
        for use in uses:
            if use in layers:
                counts[layers[use]] += 1
    declared = {site.name for site in found.sites if site.declared}
    usual = {stack: majority([n for (name, _), n in counts.items() if name == stack]) for stack, _ in counts}

    def sure(name: str) -> bool:
        stack, layer = layers.get(name, ("", 0))
        inside = 1 < layer < max((number for name_, number in counts if name_ == stack), default=0)
        return name in declared or (inside and counts.get((stack, layer)) != usual.get(stack))

    return sure


def deviation(name: str, where: str, found: str, expected: str) -> Deviation:
    """A deviation with its explanation."""
    return Deviation(name, where, found, expected, *WHY[name])


def norms(found: Signature) -> Iterator[Deviation]:
    """Norms with γ = 0 or another γ than their neighbours, with a large eps, and norms that layers share."""
    place = {name: place_of(name) for name in found.gamma}
    zeros = Counter(place[name] for name, gamma in found.gamma.items() if gamma == 0.0)
    declared = all(site.declared for site in found.sites)
    for name, gamma in found.gamma.items():
        design = (
            not declared and 1 < zeros[place[name]] > list(place.values()).count(place[name]) / 2
        )  # branches that start at 0
        if gamma == 0.0 and name in found.uses and not design:
            yield deviation("norm_gamma_zero", name, "γ = 0", "γ = 1")
    for name, eps in found.eps.items():
        if eps > EPS and name in found.uses:
            yield deviation("norm_eps", name, f"eps = {eps:.3g}", "1e-5 or so")
    yield from odd_gammas(found)
    layers = {site.name: (site.stack, site.layer) for site in found.sites}
    for name, uses in found.uses.items():
        sites = [use for use in dict.fromkeys(uses) if use]
        if len({layers[use] for use in sites}) > 1 and len(sites) < len(layers):
            yield deviation("shared_norm", name, f"runs in {sites[0]} and {sites[1]}", "a norm of its own in each")


def place_of(name: str) -> str:
    """A module's name without the numbers of its lists: the same in every layer."""
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


def odd_gammas(found: Signature) -> Iterator[Deviation]:
    """Norms whose γ differs from that of the norms in the same place of the layers before and after."""
    places: dict[str, list[str]] = {}
    for name in found.gamma:
        if name in found.uses and found.eps.get(name, 0.0) <= EPS:
            places.setdefault(place_of(name), []).append(name)
    for names in places.values():
        values = [found.gamma[name] for name in names]
        usual = statistics.median(values)
        odd = (
            [name for name, value in zip(names, values, strict=True) if value > 0 and abs(math.log(value / usual)) > GAMMA]
            if usual
            else []
        )
        if len(names) > 3 and len(odd) <= max(1, len(names) // 8):
            for name in odd:
                yield deviation("norm_gamma", name, f"γ = {found.gamma[name]:.3g}", f"{usual:.3g}")


def clones(found: Signature) -> Iterator[Deviation]:
    """Layers that start as copies, and layers of which some, not all, are one and the same."""
    declared = all(site.declared for site in found.sites)  # others may use a layer twice on purpose
    if declared and 0 < len(found.ties) <= FEW * len(found.sites):
        first, second = found.ties[0]
        yield deviation("tied_layers", second, f"has the matrices of {first}", "matrices of its own")
    if found.clones:
        first, second = found.clones[0]
        yield deviation("cloned_layers", second, f"starts with the values of {first}", "values of its own")


def biases(found: Signature) -> Iterator[Deviation]:
    """A bias that is much larger than those of the same role in other layers."""
    for sites, role in by_role(found):
        values = [site.gains[role].bias for site in sites]
        usual = statistics.median(values)
        for site, value in zip(sites, values, strict=True):
            if len(sites) > 2 and value > 5 * usual and value > 1e-3 * max(site.gains[role].std, 1e-9):
                yield deviation("bias", f"{site.name} {role}", f"|bias| up to {value:.2g}", f"up to {usual:.2g}")


def set_biases(both: Sequence[Pair]) -> Iterator[Deviation]:
    """Biases that do not start at zero although the scheme's do, one role at a time."""
    for role in dict.fromkeys(role for pair in both for role in pair.site.gains):
        own = [pair for pair in both if role in pair.site.gains]
        wrong = [
            pair for pair in own
            if role in pair.match.gains and not pair.match.gains[role].bias
            and pair.site.gains[role].bias > 1e-3 * max(pair.site.gains[role].std, 1e-9)
        ]  # fmt: skip
        if len(wrong) > len(own) / 2:  # single ones are found by comparison with the others
            value = max(pair.site.gains[role].bias for pair in wrong)
            yield deviation("bias", f"{wrong[0].site.name} {role}", f"|bias| up to {value:.2g}", "0")


def by_role(found: Signature) -> Iterator[tuple[list[SiteSignature], str]]:
    """(sites of one stack and kind whose matrix of that role has the same shape, role)."""
    groups: dict[tuple[str, str, str, tuple[int, int]], list[SiteSignature]] = {}
    for site in found.sites:
        for role, gain in site.gains.items():
            groups.setdefault((site.stack, site.kind, role, gain.shape), []).append(site)
    for (_, _, role, _), sites in groups.items():
        yield sites, role


def factors(both: Sequence[Pair]) -> Iterator[Deviation]:
    """Norms and factors against the scheme's."""
    kinds: dict[tuple[str, str], list[float]] = {}
    for pair in both:
        if math.isfinite(pair.site.branch):
            kinds.setdefault((pair.site.stack, pair.site.kind), []).append(pair.site.branch)
    for pair in both:
        site, match = pair.site, pair.match
        usual = statistics.median(kinds.get((site.stack, site.kind), [1.0]))
        if site.placement != match.placement:
            yield deviation("norm_placement", site.name, f"norm {site.placement}", f"norm {match.placement}")
        if site.normed != match.normed and not site.silent:
            yield deviation("branch_norm", site.name, *("normed", "not normed")[:: 1 if site.normed else -1])
        elif site.normed and apart(site.size, match.size) > FACTOR:
            yield deviation("branch_factor", site.name, f"size {site.size:.3g}", f"{match.size:.3g}")
        if (site.inner > 0) != (match.inner > 0) and (site.kind == "ffn" or match.inner):
            yield deviation("inner_norm", site.name, f"{site.inner} norms inside", f"{match.inner}")
        if site.mirrored != match.mirrored:
            yield deviation("mirror", site.name, f"mirrored halves: {site.mirrored}", str(match.mirrored))
        own = not math.isfinite(match.branch)  # the scheme's own is unknown: other layers tell
        meant, limit = (usual, OUTLIER) if own else (match.branch, FACTOR)
        if not site.normed and not site.silent and apart(site.branch, meant) > limit:
            yield deviation("branch_factor", site.name, f"{site.branch:.3g}", f"{meant:.3g}")
        reads = site.placement == match.placement and site.placement in ("pre", "both")
        if reads and apart(site.reads, match.reads) > 3 * FACTOR:
            yield deviation("input_factor", site.name, f"size {site.reads:.3g}", f"{match.reads:.3g}")
    yield from skips(both)


def found_factors(found: Signature, other: Reference) -> Iterator[Deviation]:
    """A model whose sites were found, not declared: norms and shortcuts against the scheme's, the rest against its own layers.

    Its initialisation is its own, and what a branch is multiplied by may be a gate or a router.
    """
    both = pairs(found, other)
    for pair in both:
        site, match = pair.site, pair.match
        if site.placement != match.placement:
            yield deviation("norm_placement", site.name, f"norm {site.placement}", f"norm {match.placement}")
        if site.normed != match.normed and not site.silent:
            yield deviation("branch_norm", site.name, *("normed", "not normed")[:: 1 if site.normed else -1])
    yield from skips(both)
    drawn = convention(both)
    if drawn.scaled and drawn.name.startswith("xavier") and (drawn.explained >= 0.5 or intended(both)):
        yield from gains(both)
    for sites in alike(found):
        for site, value, usual in outliers([each for each in sites if not each.normed], lambda site: site.branch, BLURRED):
            yield deviation("branch_factor", site.name, f"{value:.3g}", f"{usual:.3g}")


def alike(found: Signature) -> list[list[SiteSignature]]:
    """Sites of one stack that have the same matrices, in layers that are built alike: with the same in all their sites."""
    own = {site.name: (site.kind, [(role, gain.shape) for role, gain in site.gains.items()]) for site in found.sites}
    layers: dict[tuple[str, int], list[Any]] = {}
    for site in found.sites:
        layers.setdefault((site.stack, site.layer), []).append(own[site.name])
    groups: dict[tuple[str, str, str], list[SiteSignature]] = {}
    for site in found.sites:
        groups.setdefault((site.stack, str(own[site.name]), str(layers[site.stack, site.layer])), []).append(site)
    return list(groups.values())


def ends_its_list(site: SiteSignature, sites: Sequence[SiteSignature]) -> bool:
    """Whether no site of the same module list comes after it: a norm seen there may be the list's final one."""
    place = site.name.split(".")
    number = max((i for i, part in enumerate(place) if part.isdigit()), default=0)
    own = [each.name.split(".") for each in sites]
    same = [other for other in own if other[:number] == place[:number] and len(other) > number and other[number].isdigit()]
    return place[number].isdigit() and all(int(other[number]) <= int(place[number]) for other in same)


def skips(both: Sequence[Pair]) -> Iterator[Deviation]:
    """Shortcut factors against the scheme's: one name for a whole stack, another for single sites."""
    for stack in dict.fromkeys(pair.site.stack for pair in both):
        own = [pair for pair in both if pair.site.stack == stack and math.isfinite(pair.site.skip) and pair.site.even]
        wrong = [pair for pair in own if apart(pair.site.skip, pair.skip) > (FACTOR if pair.site.sharp else OUTLIER)]
        if len(wrong) > FEW * len(own):
            yield deviation("shortcut_constant", stack, f"{wrong[0].site.skip:.4g}", f"{wrong[0].skip:.4g}")
        else:
            for pair in wrong:
                yield deviation("shortcut_factor", pair.site.name, f"{pair.site.skip:.4g}", f"{pair.skip:.4g}")


def gains(both: Sequence[Pair], limit: float = GAIN) -> Iterator[Deviation]:
    """Initial sizes of matrices against the scheme's, where the initialisation was recognised."""
    drawn = convention(list(both))
    if not drawn.known:
        return
    rest, middle = unexplained(list(both), drawn.name), math.log(drawn.factor)
    scale = {(pair.site.name, role): factor for pair in both for role, factor in pair.scale.items()}
    count = max(len([pair for pair in both if pair.site.stack == stack]) for stack in {pair.site.stack for pair in both})
    wrong: dict[tuple[str, str], list[tuple[str, float]]] = {}
    totals: dict[tuple[str, str], int] = {}
    for pair in both:
        for role in pair.site.gains:
            kind = (pair.site.kind, role)
            value = rest.get((pair.site.name, role))
            totals[kind] = totals.get(kind, 0) + (value is not None)
            outputs, inputs = pair.site.gains[role].shape
            allowed = limit + 4 / math.sqrt(2 * outputs * inputs)
            if value is not None and (value == 0 or abs(math.log(value) - middle) > allowed):
                wrong.setdefault(kind, []).append((pair.site.name, math.exp(math.log(value) - middle) if value else 0.0))
    for kind, cases in wrong.items():
        yield from _named(kind, cases, len(cases) > FEW * totals[kind], scale, count)


def no_gains(both: Sequence[Pair]) -> Iterator[Deviation]:
    """Matrices drawn all alike although the scheme has factors on some of them."""
    drawn = convention(list(both))
    if drawn.known or not drawn.scaled or plain(list(both)).explained < 0.75:
        return
    factors = [(pair.site.name, role, meant) for pair in both for role, meant in pair.scale.items() if meant > 0]
    site, role, meant = max(factors, key=lambda factor: abs(math.log(factor[2])))
    yield deviation("gain", f"{site} {role}", "1 × the base", f"{meant:.3g} × the base")


def _named(
    kind: tuple[str, str], cases: list[tuple[str, float]], everywhere: bool, scale: dict[tuple[str, str], float], count: int
) -> Iterator[Deviation]:
    """The deviations of one role: of the whole model under one name, of single layers one by one."""
    role = kind[1]
    for site, off in cases[:1] if everywhere else cases:
        where, meant = f"{site} {role}", scale[site, role]
        if off == 0.0:
            yield deviation("zero_matrix", where, "all zeros", "random values")
        elif everywhere and abs(math.log(off) + 2 * math.log(meant)) < GAIN and abs(math.log(meant)) > GAIN / 2:
            yield deviation("gain_inverted", where, f"{off * meant:.3g} × the base", f"{meant:.3g} × the base")
        elif everywhere and role not in ("out", "fc2") and abs(math.log(off) + 0.5 * math.log(count)) < 0.35:
            yield deviation("gain_on_wrong_matrix", where, f"{off:.3g} × its usual size", "that factor on out and fc2")
        else:
            yield deviation("gain", where, f"{off * meant:.3g} × the base", f"{meant:.3g} × the base")


def layer_gains(found: Signature) -> Iterator[Deviation]:
    """Single layers whose matrices start unlike their neighbours', in any initialisation."""
    for sites, role in by_role(found):
        shape = sites[0].gains[role].shape
        limit = OUTLIER + 4 / math.sqrt(2 * shape[0] * shape[1])  # few numbers have an uncertain deviation
        odd = outliers(sites, lambda site, role=role: site.gains[role].std, limit)  # type: ignore[misc]
        for site, value, usual in odd:
            name = "zero_matrix" if value == 0 else "layer_gain"
            yield deviation(name, f"{site.name} {role}", f"deviation {value:.3g}", f"about {usual:.3g}, as its neighbours")


def outliers(
    sites: Sequence[SiteSignature], of: Callable[[SiteSignature], float], limit: float = OUTLIER
) -> list[tuple[SiteSignature, float, float]]:
    """(site, value, what its neighbours are like) where the two differ; none where many do, which is a design."""
    found = []
    for i, site in enumerate(sites):
        around = [of(other) for other in sites[max(0, i - 2) : i + 3] if other is not site and math.isfinite(of(other))]
        value = of(site)
        if len(around) < 2 or not math.isfinite(value):
            continue
        usual = statistics.median(around)
        if i in (0, len(sites) - 1) and all(
            each > 0 for each in around[:2]
        ):  # one that follows a trend over depth is no outlier
            near, far = (around[0], around[1]) if i == 0 else (around[-1], around[-2])
            usual = min(max(value, min(near, near * near / far)), max(near, near * near / far))
        if (value == 0) != (usual == 0) or (value > 0 and usual > 0 and abs(math.log(value / usual)) > limit):
            found.append((site, value, usual))
    return found if len(found) <= max(1, FEW * len(sites)) else []


def own_layers(found: Signature) -> Iterator[Deviation]:
    """A model of no known scheme: single sites against others of their kind."""
    for sites in alike(found):
        usual = majority([site.placement for site in sites])
        odd = [site for site in sites if site.placement != usual and not ends_its_list(site, sites)]
        if len(sites) > 2 and len(odd) <= max(1, FEW * len(sites)) and len(odd) < len(sites) / 2:
            for site in odd:
                yield deviation("norm_placement", site.name, f"norm {site.placement}", f"norm {usual}")
        for site, value, middle in outliers(sites, lambda site: abs(site.skip)):
            yield deviation("shortcut_factor", site.name, f"{value:.4g}", f"{middle:.4g}")


def final(found: Signature, other: Reference) -> Iterator[Deviation]:
    """A final norm that is missing, or one too many; of found sites, missing only if a matrix follows and no norm.

    A found stack ends the model, or is read by cross-attention: between the stages of a pyramid there need be no norm.
    """
    declared = {site.stack for site in found.sites if site.declared}
    crossed = any(site.kind == "cross_attention" for site in found.sites)
    ends = set(found.final) if crossed else set(list(found.final)[-1:])
    for (stack, count), meant in zip(found.final.items(), other.final, strict=False):
        bare = meant and not count and stack in found.bare & ends
        if (bool(count) != bool(meant)) if stack in declared else bare:
            yield deviation("final_norm", stack, f"{count} norms after the last layer", str(meant))
