"""The probe: a model, a batch and the model's sites, watched inside a context manager that leaves everything as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bathy.clinic.readings import Reading
from bathy.errors import BatchError, ModelError
from bathy.sites.batch import Batch, call, map_tensors, on_device_of, undisturbed
from bathy.sites.positions import first_tokens
from bathy.sites.site import Moment, Site, declared_sites
from bathy.sites.trace import find_sites
from bathy.transformer import Transformer

Loss = Callable[[Any, Batch], Tensor]
"""The training objective: from the model's output and the batch to one number."""

PLACE = ("stack", "kind", "layer", "index")
"""Columns of a row that a site fills in."""

Watcher = Callable[[Site, Moment, Tensor], object]


def discover(model: nn.Module, batch: Batch | None) -> Sequence[Site]:
    """The model's sites in the order of execution; a model that declares none is traced on the batch."""
    sites = declared_sites(model)
    if not sites and batch is None:
        raise ModelError(f"{type(model).__name__} declares no sites; give a batch on which they can be found")
    return sites or find_sites(model, batch)  # type: ignore[arg-type]


@dataclass(kw_only=True)
class Labelled:
    """Makes rows that all carry the same label."""

    label: dict[str, Any] = field(default_factory=dict)
    """Columns that every row gets: model and step."""

    def reading(self, exam: str, quantity: str, value: float | Tensor, site: Site | None = None, **columns: Any) -> Reading:
        """A row, at a site where one is given."""
        number = value.item() if isinstance(value, Tensor) else value
        place = {} if site is None else {"site": site.name} | {key: getattr(site, key) for key in PLACE}
        return Reading(quantity, float(number), exam, **self.label | place | columns)


@dataclass
class Subject(Labelled):
    """What an exam looks at: a model in evaluation mode, a batch on its device, sites, real tokens and the objective."""

    model: nn.Module
    batch: Batch
    sites: Sequence[Site]
    masks: dict[str, Tensor]
    loss: Loss
    lr: float | None = None
    """Learning rate of the step whose output change is measured; 1e-5 where none is given."""
    loss_scale: float = 1.0
    seed: int = 0

    @property
    def rows(self) -> dict[str, Tensor]:
        """Indices of the real tokens, by stack."""
        return {stack: mask.flatten().nonzero().squeeze(1) for stack, mask in self.masks.items()}

    @property
    def stacks(self) -> dict[str, list[Site]]:
        """The sites of each stack."""
        found: dict[str, list[Site]] = {}
        for site in self.sites:
            found.setdefault(site.stack, []).append(site)
        return found

    def forward(self) -> Any:
        """The model's output for the batch."""
        return call(self.model, self.batch)

    def objective(self) -> Tensor:
        """The loss on the batch."""
        return self.loss(self.forward(), self.batch)


@contextmanager
def examined(
    model: nn.Module, batch: Batch, loss: Loss | None = None, tokens: int = 4096, **settings: Any
) -> Iterator[Subject]:
    """A subject for exams, in evaluation mode; weights, buffers, gradients, mode and random state come back as they were."""
    batch = on_device_of(model, batch)
    sites = discover(model, batch)
    batch, positions = first_tokens(model, batch, sites, tokens)
    with undisturbed(model), _own_gradients(model), torch.enable_grad():
        output = positions.fill(model.eval(), batch, sites)
        chosen = loss or loss_for(model, output)
        yield Subject(model, batch, sites, positions.masks, chosen, **settings)


def loss_for(model: nn.Module, output: Any) -> Loss:
    """The objective where none was given: for our models the next token's, for others the output's own, else a projection."""
    if isinstance(model, Transformer) or getattr(output, "loss", None) is not None:
        return default_loss
    return projection_loss


@contextmanager
def _own_gradients(model: nn.Module) -> Iterator[None]:
    """A block in which gradients start empty; the old ones come back after it."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        yield
    finally:
        for parameter, grad in kept:
            parameter.grad = grad


@contextmanager
def own_weights(parameters: Sequence[Tensor]) -> Iterator[None]:
    """A block in which the parameters may be changed; their values come back bit by bit."""
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)


@contextmanager
def watching(sites: Sequence[Site], watch: Watcher, *moments: Moment) -> Iterator[None]:
    """Call `watch(site, moment, tensor)` for the forward passes inside the block.

    A site hears its own pass only: what two sites share, such as ReZero's α, is counted for the one that was entered last.
    """
    inside: list[Site | None] = [None]

    def enter(site: Site, x: Tensor) -> None:
        inside[0] = site
        if "input" in moments:
            watch(site, "input", x)

    def hear(site: Site, moment: Moment, x: Tensor) -> None:
        if inside[0] is site:
            watch(site, moment, x)

    with ExitStack() as handles:
        for site in sites:
            handles.callback(site.on("input", partial(enter, site)).remove)
            for moment in moments:
                if moment != "input":
                    handles.callback(site.on(moment, partial(hear, site, moment)).remove)
        yield


def default_loss(output: Any, batch: Batch) -> Tensor:
    """The output's own `loss` where it has one; else cross-entropy of the logits against the batch's last integer tensor.

    That tensor is what a decoder reads, so position t is asked for token t + 1; id 0 is padding and is left out.
    """
    if getattr(output, "loss", None) is not None:
        return output.loss
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    tokens = [part for part in _parts(batch) if isinstance(part, Tensor) and not part.is_floating_point() and part.dim() == 2]
    if logits is None or not tokens or logits.dim() != 3 or logits.shape[:2] != tokens[-1].shape:
        raise BatchError("the model's output gives no loss by itself; pass loss=function of (output, batch)")
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[-1][:, 1:].flatten(), ignore_index=0)


def projection_loss(output: Any, batch: Batch) -> Tensor:
    """A seeded random projection of the output: (1/n) Σ ⟨y, r⟩/√D over its n vectors y, for a model that gives no loss."""
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else [output]
    found = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    if not found:
        raise BatchError("the model's output has no floating-point tensor; pass loss=function of (output, batch)")
    y = found[0].float()
    direction = torch.randn(y.shape[-1], generator=torch.Generator().manual_seed(0)).to(y.device)
    return (y @ direction).mean() / y.shape[-1] ** 0.5


LOSSES: dict[Loss, str] = {
    default_loss: "the output's own, else the next token's",
    projection_loss: "a seeded random projection of the output",
}
"""What an objective that was not given is called."""


def _parts(batch: Batch) -> list[Any]:
    """The values of a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    return list(batch.values()) if isinstance(batch, dict) else list(batch)


def roll_source(batch: Batch) -> Batch | None:
    """The batch with each sentence's source replaced by its neighbour's; nothing where there is no source, or one sentence.

    In a tuple the source is the first entry of several; in a dict everything but what is named for the decoder or target.
    """

    def rolled(x: Tensor) -> Tensor:
        return x.roll(1, 0) if x.dim() else x

    if isinstance(batch, dict):
        own = {key: value for key, value in batch.items() if not key.startswith(("decoder", "target", "tgt", "labels"))}
        found = len(own) < len(batch)
        batch = batch | map_tensors(own, rolled)  # type: ignore[operator]
        return batch if found and _sentences(batch) > 1 else None
    first, *others = _parts(batch)
    return (rolled(first), *others) if others and _sentences(batch) > 1 else None


def _sentences(batch: Batch) -> int:
    """Sentences in the batch."""
    return max(len(part) for part in _parts(batch) if isinstance(part, Tensor) and part.dim())


def scaled_logits(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    """q · kᵀ · scale, as scaled_dot_product_attention computes it; keys of grouped heads are repeated."""
    if q.shape[-3] != k.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    return q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
