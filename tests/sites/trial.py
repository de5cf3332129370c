"""One specimen put through everything, and the verdict: right, refused with a reason, or wrong."""

import copy
import math
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

import bathy
from bathy.admin.fold import outputs
from bathy.errors import BathyError
from bathy.lab.bench.shrink import Excluded
from bathy.lab.bench.zoo import Build
from bathy.sites.batch import Batch

SHALLOW, DEEP = 4, 6
"""Layers of the two models that are compared."""


@dataclass
class Trial:
    """What happened to one specimen."""

    name: str
    library: str
    verdict: str = "right"
    reason: str = ""
    sites: int = 0
    placement: str = ""
    remedy: str = ""
    before: float = 0.0
    after: float = 0.0
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
    except (TimeoutError, Excluded):
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        result.verdict = "wrong"
        result.reason = (
            f"traceback: {type(error).__name__}: {str(error)[:160]} ({place.filename.split('/')[-1]}:{place.lineno})"
        )
    if result.problems:
        result.verdict, result.reason = "wrong", "; ".join(result.problems)
    return result


def _try(result: Trial, build: Build, law: bool) -> None:
    model, batch = build(DEEP)
    before = copy.deepcopy(model.state_dict())
    sites = bathy.find_sites(model, batch)
    result.sites, result.placement = len(sites), "/".join(sorted({site.placement for site in sites}))
    _unchanged(result, model, before)
    if law:
        _depth_law(result, build, sites, sum(p.numel() for p in model.parameters()))
    plain = _evaluated(model, batch)
    profile = bathy.stabilise_(model, batch)
    result.remedy = ", ".join(sorted({t.remedy for t in profile.treatments if t.kept})) or "not needed"
    result.before, result.after = sum(t.before for t in profile.treatments), sum(t.after for t in profile.treatments)
    for note in profile.notes:
        if "no remedy applies" in note:
            result.verdict, result.reason = "refused", note
    undone = [str(t) for t in profile.treatments if not t.kept]
    if undone:
        result.verdict, result.reason = "refused", undone[0]
    if not all(math.isfinite(float(x.abs().max())) for x in _evaluated(model, batch) if x.numel() and x.isfinite().all()):
        result.problems.append("outputs are not finite after stabilising")
    _fold(result, model, batch, len(plain))


def _unchanged(result: Trial, model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    state = model.state_dict()
    if list(state) != list(before) or not all(
        torch.equal(state[k], v) for k, v in before.items() if isinstance(v, torch.Tensor)
    ):
        result.problems.append("find_sites changed the model")
    if any("bathy" in str(h) for m in model.modules() for h in [*m._forward_hooks.values(), *m._forward_pre_hooks.values()]):
        result.problems.append("find_sites left hooks behind")


def _depth_law(result: Trial, build: Build, sites: Any, size: int) -> None:
    """Two layers more: more sites by a whole number for each layer, and no more stacks."""
    shallow, batch = build(SHALLOW)
    if sum(p.numel() for p in shallow.parameters()) == size:  # the number of layers is set by something else
        return
    fewer = bathy.find_sites(shallow, batch)
    more, step = len(sites) - len(fewer), DEEP - SHALLOW
    runs = sum(s.calls for s in sites) - sum(s.calls for s in fewer)
    if runs <= 0 or runs % step:
        result.problems.append(f"{step} layers more give {more} sites more")
    stacks, before = {s.stack for s in sites}, {s.stack for s in fewer}
    if len(stacks) > len(before):
        result.problems.append(f"{len(before)} stacks become {len(stacks)} with {step} layers more")


def _evaluated(model: nn.Module, batch: Batch) -> list[torch.Tensor]:
    with torch.no_grad():
        return outputs(copy.deepcopy(model).eval(), batch)


def _fold(result: Trial, model: nn.Module, batch: Batch, count: int) -> None:
    try:
        folded = bathy.fold(model)
    except BathyError as error:
        result.fold = f"refused: {error}"
        return
    pairs = list(zip(_evaluated(model, batch), _evaluated(folded, batch), strict=True))
    change = max((_difference(a, b) for a, b in pairs), default=0.0)
    result.fold = f"{change:.0e}"
    if change > 1e-4 or len(pairs) != count or any("bathy" in key for key in folded.state_dict()):
        result.problems.append(f"folding changes the output by {change:.1e}")


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    return float((a - b).abs()[~same].max() / a[a.isfinite()].abs().max().clamp(min=1))
