"""Branch share and activation scales at every site, growth of Var[x_i], peaks, and the first place that is not finite."""

from __future__ import annotations

import torch
from torch import Tensor

from bathy.clinic.measures import real, token_variance
from bathy.clinic.probe import Labelled, Subject, watching
from bathy.clinic.readings import Reading
from bathy.sites.site import Moment, Site


def activations(subject: Subject) -> list[Reading]:
    """Rows of every site from one forward pass; see `site_rows`."""
    seen: dict[tuple[str, Moment], Tensor] = {}
    limits: dict[str, float] = {}
    rows = subject.rows

    def watch(site: Site, moment: Moment, x: Tensor) -> None:
        seen[site.name, moment] = statistics(x, rows[site.stack])
        if moment == "branch":
            limits[site.name] = torch.finfo(x.dtype).max

    with watching(subject.sites, watch, "input", "branch", "sum", "output"), torch.no_grad():
        subject.forward()
    result = []
    for site in subject.sites:
        found = {moment: x.tolist() for (name, moment), x in seen.items() if name == site.name}
        if found:
            result += site_rows(subject, site, found, limits[site.name])
    return result


def statistics(x: Tensor, rows: Tensor | None) -> Tensor:
    """[variance, token variance, largest |x|, entries that are not finite] over real tokens, in float32, on x's device."""
    tokens = real(x, rows)
    parts = [tokens.var(correction=0), token_variance(tokens), tokens.abs().max(), (~tokens.isfinite()).sum().float()]
    return torch.stack(parts)


def site_rows(label: Labelled, site: Site, found: dict[Moment, list[float]], limit: float) -> list[Reading]:
    """Rows of one site.

    branch_share = Var[a] / Var[ω·x + a], which is β²_ii; the variances of input, branch, sum and output; token variance of
    the output; peak, the largest |entry| of branch and sum, and limit, the largest number that the branch's dtype holds;
    nonfinite, how many entries of branch, sum and output are infinite or no number; omega, its mean size.
    """
    values = {f"{moment}_variance": statistic[0] for moment, statistic in found.items()}
    values["branch_share"] = found["branch"][0] / found["sum"][0] if found["sum"][0] else 0.0
    values["token_variance"] = found["output"][1]
    values["peak"], values["limit"] = max(found["branch"][2], found["sum"][2]), limit
    values["nonfinite"] = found["branch"][3] + found["sum"][3] + found["output"][3]
    values["omega"] = float(torch.as_tensor(site.omega).detach().abs().mean())
    return [label.reading("activations", quantity, value, site) for quantity, value in values.items()]
