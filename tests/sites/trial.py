"""One specimen put through everything, and the verdict: right, refused with a reason, or wrong.

What is right is known by ways that share nothing with bathy (`oracle`): sums per layer, results compared, noise on weights.
"""

import copy
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from architectures import NESTED, expected_runs, usual
from oracle import DRAWS, MANY_DRAWS, additions, gap, response, results
from torch import nn

import bathy
from bathy.errors import BathyError
from bathy.lab.bench.shrink import Excluded
from bathy.lab.bench.zoo import Build

SHALLOW, DEEP = 3, 5
"""Layers of the two models that are compared."""
FOLDED = 1e-4
"""Largest change of a result, relative to its largest number, by folding."""
GROWS = 1.1
"""A remedy that was kept must not make the model answer noise on its weights more than this much more strongly."""


@dataclass
class Trial:
    """What happened to one specimen."""

    name: str
    library: str
    verdict: str = "right"
    reason: str = ""
    sites: int = 0
    layers: int = 0
    """Layers that the deeper of two models has more; 0 where its depth cannot be chosen."""
    runs: int = 0
    """Executions of sites in one pass, or how many more the deeper model has."""
    sums: int = 0
    """The same of sums of two streams, as the source runs them."""
    usual: tuple[int, str] = (2, "")
    expected: str = ""
    """What the architecture has, and how that is known."""
    placement: str = ""
    remedy: str = ""
    before: float = 0.0
    after: float = 0.0
    response: list[float] = field(default_factory=list)
    """How strongly the model answers noise on its weights, before and after."""
    fold: str = ""
    problems: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        return asdict(self)


def trial(name: str, library: str, build: Build, law: bool = True) -> Trial:
    """Everything a user would do, and laws that hold for any model; `law`: whether its depth can be chosen."""
    result = Trial(name, library)
    try:
        with warnings.catch_warnings(action="ignore"):
            _try(result, build, law)
    except BathyError as error:
        result.verdict, result.reason = "refused", str(error)
    except Excluded:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.split('/')[-1]}:{place.lineno}"
        result.verdict = "wrong"
        result.reason = f"traceback: {type(error).__name__}: {str(error)[:160]} ({where})"
    return result


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its verdict: what was counted held against the architecture, and what else was found."""
    refused = row["verdict"] == "refused" and not row["remedy"]
    if row["verdict"] == "excluded" or not row["sites"] or refused:
        return row
    wanted, why = expected_runs(row)
    problems = list(row["problems"])
    if row["runs"] != wanted:
        more = f" more for {row['layers']} layers more" if row["layers"] else ""
        problems.append(f"{row['runs']} sites{more}, where the architecture has {wanted} ({why})")
    row = row | {"expected": f"{wanted} ({why})"}
    if problems:
        return row | {"verdict": "wrong", "reason": "; ".join(problems)}
    counted = row["verdict"] == "wrong" and not row["reason"].startswith("traceback")  # by an earlier table of architectures
    return row | {"verdict": "right", "reason": ""} if counted else row


def _try(result: Trial, build: Build, law: bool) -> None:
    model, batch = build(DEEP)
    before = copy.deepcopy(model.state_dict())
    count = additions(model, batch)
    sites = bathy.find_sites(model, batch)
    result.sites, result.placement = len(sites), "/".join(sorted({site.placement for site in sites}))
    _unchanged(result, model, before)
    _count(result, build, sites, count, model, law)
    untreated = copy.deepcopy(model)
    profile = bathy.stabilise_(model, batch)
    result.remedy = ", ".join(sorted({t.remedy for t in profile.treatments if t.kept})) or "not needed"
    result.before, result.after = sum(t.before for t in profile.treatments), sum(t.after for t in profile.treatments)
    for note in profile.notes:
        if "no remedy applies" in note:
            result.verdict, result.reason = "refused", note
    undone = [str(t) for t in profile.treatments if not t.kept]
    if undone:
        result.verdict, result.reason = "refused", undone[0]
    if result.remedy != "not needed":
        _respond(result, untreated, model, batch, bool(undone))
    _fold(result, model, batch)


def _respond(result: Trial, untreated: nn.Module, model: nn.Module, batch: Any, undone: bool) -> None:
    """How strongly the model answers noise before and after; more draws decide where a few say that it grew."""
    for draws in (DRAWS, MANY_DRAWS):
        result.response = [response(one, batch, draws) for one in (untreated, model)]
        before, after = result.response
        if after <= GROWS * before or undone:
            return
    result.problems.append(f"noise on the weights moves the output by {before:.3g} before, {after:.3g} after")


def _unchanged(result: Trial, model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    state = model.state_dict()
    if list(state) != list(before) or not all(
        torch.equal(state[k], v) for k, v in before.items() if isinstance(v, torch.Tensor)
    ):
        result.problems.append("find_sites changed the model")
    if any("bathy" in str(h) for m in model.modules() for h in [*m._forward_hooks.values(), *m._forward_pre_hooks.values()]):
        result.problems.append("find_sites left hooks behind")


def _count(result: Trial, build: Build, sites: Any, count: int, model: nn.Module, law: bool) -> None:
    """Sites and the source's sums, or, where the depth can be chosen, how many more of both there are with more layers."""
    result.runs, result.sums, result.usual = sum(site.calls for site in sites), count, usual(result.library, model)
    if not law:
        return
    shallow, batch = build(SHALLOW)
    if sum(p.numel() for p in shallow.parameters()) == sum(p.numel() for p in model.parameters()):
        return
    fewer = bathy.find_sites(shallow, batch)
    result.layers = DEEP - SHALLOW
    result.runs -= sum(site.calls for site in fewer)
    result.sums -= additions(shallow, batch)
    stacks, were = {site.stack for site in sites}, {site.stack for site in fewer}
    if len(stacks) > len(were) and result.name not in NESTED:
        result.problems.append(f"{len(were)} stacks become {len(stacks)} with {result.layers} layers more")


def _fold(result: Trial, model: nn.Module, batch: Any) -> None:
    """Folding keeps the function, also of a model whose ω and norms are no longer as they began."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bathy_omega" in name:
                parameter.mul_(1 + 0.2 * torch.rand(parameter.shape, generator=generator).to(parameter))
    try:
        folded = bathy.fold(model)
    except BathyError as error:
        result.fold = f"refused: {error}"
        return
    other = _turned(batch)
    change = gap(results(model, other), results(folded, other))
    result.fold = f"{change:.0e}"
    if change > FOLDED or any("bathy" in key for key in folded.state_dict()):
        result.problems.append(f"folding changes the output by {change:.1e}")


def _turned(batch: Any) -> Any:
    """Another batch of the same kind: its rows in another order."""
    if isinstance(batch, dict):
        return {key: _turned(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(_turned, batch))
    return batch.flip(0) if isinstance(batch, torch.Tensor) and batch.dim() > 1 else batch
