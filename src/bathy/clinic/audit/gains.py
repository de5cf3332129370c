"""Deviations of initial sizes: matrices and biases against the scheme's, and against those of other layers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from bathy.clinic.audit.deviation import Deviation, deviation
from bathy.clinic.audit.reference import Pair, convention, plain, unexplained
from bathy.clinic.audit.signature import Signature, SiteSignature

GAIN = math.log(1.25)
"""|log| of a matrix's deviation over what it should be, where the initialisation was recognised."""
OUTLIER = math.log(1.4)
"""|log| of a layer's over its neighbours', in any initialisation."""
FEW = 0.34
"""Share of the layers that may be outliers; more of them are a design."""


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
