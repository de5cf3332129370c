"""A model with ω hooked in, saved to a folder and loaded again: weights as safetensors, and where its ω are as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bathy.errors import CheckpointError, ModelError
from bathy.files import write_json
from bathy.sites.batch import Batch
from bathy.sites.hooks import Sites, Tap, TracedSite, hooked_sites
from bathy.sites.site import Moment
from bathy.sites.trace import find_sites

Model = TypeVar("Model", bound=nn.Module)
OWN = ("name", "stack", "kind", "layer", "index", "placement", "width", "calls")
WEIGHTS, PLACES = "bathy_model.safetensors", "bathy_omega.json"


@dataclass(frozen=True)
class StoredSite:
    """Where one ω is: all that is needed to hook it in again."""

    name: str
    stack: str
    kind: str
    layer: int
    index: int
    placement: str
    post: str
    width: int
    calls: int
    skip: float
    stuck: str
    constant: float | None
    """ω where it is a constant; nothing where it is a parameter."""
    input: list[Any]
    """The tap that shows x: module, side, where, copy, factor."""
    sum: list[Any]


def save(model: nn.Module, folder: str | Path) -> None:
    """Write the model's weights and where its ω are; `bathy.load` reads both. Shared tensors are written once."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {id(module): path for path, module in model.named_modules()}
    sites = hooked_sites(model) or ()
    write_json(folder / PLACES, [asdict(_stored(site, paths)) for site in sites if not _plain(site)])
    tensors, aliases = _unshared(model.state_dict())
    part = folder / f"{WEIGHTS}.part"
    save_file(tensors, part, metadata={"aliases": json.dumps(aliases)})
    part.replace(folder / WEIGHTS)


def load(model: Model, folder: str | Path, batch: Batch | None = None) -> Model:
    """The model, newly built by its own code, with the weights and ω that `bathy.save` wrote; returns the model itself.

    With a batch the sites are traced anew, so that the model can be folded and examined as before.
    """
    folder = Path(folder)
    try:
        stored = [StoredSite(**row) for row in json.loads((folder / PLACES).read_text(encoding="utf-8"))]
        tensors: dict[str, Tensor] = load_file(folder / WEIGHTS)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder} is no model that bathy.save wrote ({error})") from error
    found = Sites(()) if batch is None else find_sites(model, batch)
    known = {site.name: site for site in found}
    for row in stored:
        if row.name in known:
            known[row.name].attach_(row.constant)
        else:
            _attach(model, row, found)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    own = set(_unshared(model.state_dict())[0])
    lost = [name for name in missing if name in own]
    if lost or unexpected:
        raise CheckpointError(f"{folder} does not fit {type(model).__name__}: {(lost or list(unexpected))[0]} is not in both")
    return model


def _taps(row: StoredSite) -> Iterator[tuple[Moment, list[Any]]]:
    yield "input", row.input
    yield "sum", row.sum


def _plain(site: TracedSite) -> bool:
    return isinstance(site.omega, float) and site.omega == 1


def _stored(site: TracedSite, paths: Mapping[int, str]) -> StoredSite:
    taps = {moment: site.taps[moment] for moment in ("input", "sum")}
    rows: dict[str, Any] = {
        m: [paths[id(tap.module)], tap.side, list(tap.where), tap.copy, tap.factor] for m, tap in taps.items()
    }
    own: dict[str, Any] = {name: getattr(site, name) for name in OWN}
    constant = None if isinstance(site.omega, nn.Parameter) else site.omega
    more: dict[str, Any] = {
        "skip": site.skip,
        "stuck": site.stuck or "it was loaded without a batch: bathy.load(model, folder, batch) traces it",
        "constant": constant,
    }
    return StoredSite(post=paths[id(site.post)], **own, **more, **rows)


def _attach(model: nn.Module, row: StoredSite, found: Sites) -> None:
    try:
        taps: dict[Moment, Tap] = {
            moment: Tap(model.get_submodule(path), side, tuple(where), copy, factor)
            for moment, (path, side, where, copy, factor) in _taps(row)
        }
        post = model.get_submodule(row.post)
    except AttributeError as error:
        raise ModelError(f"{type(model).__name__} has no place for the ω of {row.name}: {error}") from error
    own: dict[str, Any] = {name: getattr(row, name) for name in OWN}
    site = TracedSite(post=post, matrices=[], skip=row.skip, stuck=row.stuck, taps=taps, found=found, **own)
    site.unwatched.update(site.missing())
    found.sites.append(site)
    site.attach_(row.constant)


def _unshared(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, and for those that share memory with an earlier one its name."""
    first: dict[tuple[Any, ...], str] = {}
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in state.items():
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape)
        if place in first and tensor.numel():
            aliases[name] = first[place]
        else:
            first[place] = name
            kept[name] = tensor.detach().contiguous()
    return kept, aliases
