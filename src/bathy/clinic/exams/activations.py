"""Branch share and activation scales at every site, growth of Var[x_i], peaks, and the first place that is not finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bathy.clinic.measures import real, token_variance
from bathy.clinic.outputs import output_rows
from bathy.clinic.probe import Labelled, Recorder, Subject, unwatched
from bathy.clinic.readings import Reading
from bathy.sites.site import Moment, Site


class Scales(Recorder):
    """Statistics of every site at every moment."""

    moments = ("input", "branch", "sum", "output")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.seen: dict[tuple[Site, Moment], Tensor] = {}
        self.limits: dict[Site, float] = {}

    def hear(self, site: Site, moment: Moment, x: Tensor) -> None:
        """Keep the statistics of the moment."""
        self.seen[site, moment] = statistics(x, self.subject.real.of(site, x))
        if moment == "branch":
            self.limits[site] = torch.finfo(x.dtype).max


def activations(subject: Subject) -> list[Reading]:
    """Rows of every site from one forward pass; see `site_rows`."""
    scales = subject.recorded(Scales)
    result = [
        subject.reading("activations", "unwatched", 1.0, each.site, role=each.moment) for each in unwatched(subject.sites)
    ]
    for site in subject.sites:
        found = {moment: scales.seen[site, moment].tolist() for moment in Scales.moments if (site, moment) in scales.seen}
        result += site_rows(subject, site, found, scales.limits.get(site, math.inf))
    return result + output_rows(subject, "activations", subject.output)


def statistics(x: Tensor, rows: Tensor | None) -> Tensor:
    """[variance, token variance, largest |x|, entries that are not finite] over real tokens, in float32, on x's device."""
    tokens = real(x, rows)
    parts = [tokens.var(correction=0), token_variance(tokens), tokens.abs().max(), (~tokens.isfinite()).sum().float()]
    return torch.stack(parts)


def site_rows(label: Labelled, site: Site, found: dict[Moment, list[float]], limit: float) -> list[Reading]:
    """Rows of one site.

    branch_share = Var[a] / Var[ω·x + a], which is β²_ii; the variances of input, branch, sum and output; token variance of
    the output; peak, the largest |entry| of branch and sum, and limit, the largest number that the branch's dtype holds;
    nonfinite, how many entries of branch, sum and output are infinite or NaN; omega, its mean size. A moment that cannot be
    watched leaves out what depends on it.
    """
    values = {f"{moment}_variance": statistic[0] for moment, statistic in found.items()}
    if "branch" in found and "sum" in found:
        values["branch_share"] = found["branch"][0] / found["sum"][0] if found["sum"][0] else 0.0
    if "output" in found:
        values["token_variance"] = found["output"][1]
    if "input" in found and site.index == 1:
        values["input_token_variance"] = found["input"][1]
    after = [found[moment] for moment in ("branch", "sum", "output") if moment in found]
    if after:
        values["peak"], values["limit"] = max(statistic[2] for statistic in after[:2]), limit
        values["nonfinite"] = sum(statistic[3] for statistic in after)
    values["omega"] = float(torch.as_tensor(site.omega).detach().abs().mean())
    return [label.reading("activations", quantity, value, site) for quantity, value in values.items()]
