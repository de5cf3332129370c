"""A batch is what a model's forward takes: a tensor, a tuple or a dict. How to run one, and which of its tokens are real."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bathy.errors import BatchError, ModelError

Batch = Tensor | Sequence[Any] | Mapping[str, Any]


@runtime_checkable
class KnowsRealTokens(Protocol):
    """A model that says itself which tokens of a batch are real. `bathy.Transformer` is one."""

    def real_tokens(self, *args: Any, **kwargs: Any) -> Mapping[str, Tensor]:
        """For each stack by name, true at real tokens (b t); takes what the model's forward takes."""


def call(model: nn.Module, batch: Batch) -> Any:
    """The model's output for the batch, computed by its modules and not by torch's fused encoder, which hooks do not see."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        if isinstance(batch, Mapping):
            return model(**batch)
        return model(batch) if isinstance(batch, Tensor) else model(*batch)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def tensors_in(value: Any, depth: int = 4) -> Iterator[tuple[tuple[str | int, ...], Tensor]]:
    """The tensors in a value, its tuples, lists, dicts, dataclasses and other plain objects, each with the way to it."""
    if isinstance(value, Tensor):
        yield (), value
        return
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, tuple | list):
        items = enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        items = ((field.name, getattr(value, field.name, None)) for field in fields(value))
    elif hasattr(value, "__dict__") and not isinstance(value, type | nn.Module) and not callable(value):
        items = vars(value).items()
    if depth:
        for key, item in items:
            for where, tensor in tensors_in(item, depth - 1):
                yield (key, *where), tensor


def map_tensors(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with every tensor changed."""
    if isinstance(batch, Mapping):
        return {key: change(value) if isinstance(value, Tensor) else value for key, value in batch.items()}
    if isinstance(batch, Tensor):
        return change(batch)
    return tuple(change(value) if isinstance(value, Tensor) else value for value in batch)


def on_device_of(model: nn.Module, batch: Batch) -> Batch:
    """The batch where the model's parameters are; a model without any, or whose have no numbers yet, is an error."""
    first = next(model.parameters(), None)
    if first is None:
        raise ModelError(f"{type(model).__name__} has no parameters: there is nothing to train, and nothing to stabilise")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise ModelError(f"{name} of a lazy module has no shape yet; run the model once on a batch, then try again")
        if tensor.is_inference():
            raise ModelError(f"{name} was made in torch.inference_mode and cannot be trained; build the model outside of it")
    device = first.device
    return map_tensors(batch, lambda tensor: tensor.to(device))


def first_sentences(batch: Batch, count: int) -> Batch:
    """The first `count` sentences of the batch."""
    return map_tensors(batch, lambda tensor: tensor[:count] if tensor.dim() else tensor)


def known_real_tokens(model: KnowsRealTokens, batch: Batch) -> Mapping[str, Tensor]:
    """For each stack of the model, which tokens of the batch are real (b t); an empty batch is an error."""
    if isinstance(batch, Mapping):
        masks = model.real_tokens(**batch)
    else:
        masks = model.real_tokens(*([batch] if isinstance(batch, Tensor) else batch))
    for stack, mask in masks.items():
        if not mask.any():
            raise BatchError(f"the batch has no real token for the {stack}; give it at least one sentence")
    return masks


def sentences_within(masks: Mapping[str, Tensor], tokens: int) -> int:
    """How many sentences, at least one, hold at most `tokens` real tokens in every stack."""
    counts = torch.stack([mask.sum(1).cumsum(0) for mask in masks.values()]).amax(0)
    return max(1, int((counts <= tokens).sum()))


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """A block after which the model's mode and buffers and the random state are as before, also when it raises."""
    modes = [(module, module.training) for module in model.modules()]
    scripted = torch.jit.ScriptModule  # keeps its buffers elsewhere, and no forward of it puts new ones in their place
    buffers = [(module, dict(module._buffers)) for module in model.modules() if not isinstance(module, scripted)]
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {parameter.device.index for parameter in model.parameters() if parameter.is_cuda}
    python, array = random.getstate(), numpy.random.get_state()  # by these, too, layers are dropped
    with torch.random.fork_rng([device for device in devices if device is not None]):
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(array)
            for module, training in modes:
                module.training = training
            for module, own in buffers:  # some models put new tensors in their place
                module._buffers.clear()
                module._buffers.update(own)
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)
