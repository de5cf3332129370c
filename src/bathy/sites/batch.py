"""A batch is what a model's forward takes: a tensor, a tuple or a dict. How to run one, and which of its tokens are real."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bathy.errors import BatchError
from bathy.transformer import Transformer

Batch = Tensor | Sequence[Any] | Mapping[str, Any]


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


def map_tensors(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with every tensor changed."""
    if isinstance(batch, Mapping):
        return {key: change(value) if isinstance(value, Tensor) else value for key, value in batch.items()}
    if isinstance(batch, Tensor):
        return change(batch)
    return tuple(change(value) if isinstance(value, Tensor) else value for value in batch)


def on_device_of(model: nn.Module, batch: Batch) -> Batch:
    """The batch where the model's parameters are."""
    device = next(model.parameters()).device
    return map_tensors(batch, lambda tensor: tensor.to(device))


def first_sentences(batch: Batch, count: int) -> Batch:
    """The first `count` sentences of the batch."""
    return map_tensors(batch, lambda tensor: tensor[:count] if tensor.dim() else tensor)


def real_tokens(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """For each stack of the model, which tokens of the batch are real (b t); an empty batch is an error."""
    if not isinstance(model, Transformer):
        raise BatchError(f"{type(model).__name__} does not say which tokens are real")
    if isinstance(batch, Mapping):
        masks = model.real_tokens(**batch)
    else:
        masks = model.real_tokens(*([batch] if isinstance(batch, Tensor) else batch))
    for stack, mask in masks.items():
        if not mask.any():
            raise BatchError(f"the batch has no real token for the {stack}; give it at least one sentence")
    return masks


def sentences_within(masks: dict[str, Tensor], tokens: int) -> int:
    """How many sentences, at least one, hold at most `tokens` real tokens in every stack."""
    counts = torch.stack([mask.sum(1).cumsum(0) for mask in masks.values()]).amax(0)
    return max(1, int((counts <= tokens).sum()))


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """A block after which the model's mode and buffers and the random state are as before, also when it raises."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {parameter.device.index for parameter in model.parameters() if parameter.is_cuda}
    with torch.random.fork_rng([device for device in devices if device is not None]):
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for buffer, kept in buffers:
                    buffer.copy_(kept)
