"""Where a model deviates: from the scheme it was recognised as, and from its own other layers."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bathy.clinic.audit.deviation import Deviation, deviation
from bathy.clinic.audit.gains import FEW, OUTLIER, biases, gains, layer_gains, no_gains, outliers, set_biases
from bathy.clinic.audit.reference import DECLARED_NEAR, Pair, Reference, apart, convention, intended, pairs
from bathy.clinic.audit.signature import Signature, SiteSignature, majority

FACTOR = 0.03
"""|log| of a factor over what it should be."""
FINE = 0.1
"""|log| of a matrix's size, in a model that declares its sites, where sizes are drawn as ours; more for small matrices."""
NEAR = 1.0
"""Distance to a scheme within which its constants are expected of a model that does not declare its sites."""
EPS = 0.05
"""What a norm may add to the variance."""
GAMMA = math.log(1.9)
"""|log| of a norm's γ over that of the others in its place."""
ENOUGH = 8
"""Matrices from which on their sizes can tell a scheme: a few have one scheme's by chance."""
BLURRED = math.log(2.5)
"""|log| of a branch's factor over its neighbours' in a model whose branches were found: routing and gates move it."""


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


def norms(found: Signature) -> Iterator[Deviation]:
    """Norms with γ = 0 or another γ than their neighbours, with a large eps, and norms that layers share."""
    declared = all(site.declared for site in found.sites)
    design = set() if declared else zeros_by_design(found)
    for name, gamma in found.gamma.items():
        if gamma == 0.0 and name in found.uses and name not in design:
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


def zeros_by_design(found: Signature) -> set[str]:
    """Norms that start at 0 so that branches do, as a residual network has on purpose (Goyal et al., 2017).

    They are most norms in their place, or silence most branches that have a norm. Where these are most of the norms at 0, so is
    the last norm of a block: one whose shortcut is a convolution is no site.
    """
    zeros = {name for name in found.uses if found.gamma.get(name) == 0.0}
    every, of_zeros = (Counter(map(_role, names)) for names in (found.gamma, zeros))
    silent = silenced(found)
    known = {name for name in zeros if 1 < of_zeros[_role(name)] > every[_role(name)] / 2 or silent & set(found.uses[name])}
    last = {name.rpartition(".")[0]: name for name in found.uses}
    return known | (zeros & set(last.values()) if 1 < len(known) > len(zeros) / 2 else set())


def _role(name: str) -> str:
    """A norm's name in its block, and the block's without numbers: `layer#.#.bn2`."""
    block, dot, own = name.rpartition(".")
    return re.sub(r"\d+", "#", block) + dot + ("#" if own.isdigit() else own)


def silenced(found: Signature) -> set[str]:
    """Sites whose branch has a norm and adds nothing, where most that have one add nothing."""
    normed = [site for site in found.sites if site.normed or site.inner]
    silent = {site.name for site in normed if site.silent}
    return silent if 1 < len(silent) > len(normed) / 2 else set()


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
    enough = sum(len(pair.site.gains) for pair in both) >= ENOUGH
    if enough and drawn.scaled and drawn.name.startswith("xavier") and (drawn.explained >= 0.5 or intended(both)):
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


def own_layers(found: Signature) -> Iterator[Deviation]:
    """A model of no known scheme: single sites against others of their kind."""
    for sites in alike(found):
        usual = majority([site.placement for site in sites])
        odd = [site for site in sites if site.placement != usual and not ends_its_list(site, sites)]
        if len(sites) > 2 and len(odd) <= max(1, FEW * len(sites)) and len(odd) < len(sites) / 2:
            for site in odd:
                yield deviation("norm_placement", site.name, f"norm {site.placement}", f"norm {usual}")
        for site, value, middle in outliers([each for each in sites if each.even], lambda site: abs(site.skip)):
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
