"""What a forward pass keeps for its backward pass, counted by running each kind of block only twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from bathy.train.config import Config
from bathy.train.precision import Precision
from bathy.train.state import blocks
from bathy.train.task import Sketch
from bathy.train.world import CPU


class Kept:
    """Bytes of the tensors that autograd has been given to keep, each storage once, the model's own not counted."""

    def __init__(self, model: nn.Module) -> None:
        self.own = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
        self.sizes: dict[int, int] = {}
        self.repeated = 0
        """Bytes of blocks that were counted without being run."""
        self.alive: list[Tensor] = []  # a storage that is freed gives its address to another

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values()) + self.repeated

    def add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.own:
            self.sizes[storage._cdata] = storage.nbytes()
            self.alive.append(tensor)
        return tensor


@contextmanager
def each_kind_runs_twice(model: nn.Module, kept: Kept) -> Iterator[None]:
    """In the block: from the third block of a kind on, add what the second one kept instead of running it.

    The second and not the first, which may also be given what all of them share, such as the encoder's output.
    """
    seen: dict[Any, list[tuple[int, Any]]] = {}

    def counted(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            runs = seen.setdefault((_structure(block), _shapes((args, kwargs))), [])
            if len(runs) == 2:
                kept.repeated += runs[1][0]
                return tree_map(lambda part: part.clone() if isinstance(part, Tensor) else part, runs[1][1])
            before = kept.bytes
            output = forward(*args, **kwargs)
            runs.append((kept.bytes - before, output))
            return output

        return run

    for block in blocks(model):
        block.forward = counted(block, block.forward)
    try:
        yield
    finally:
        for block in blocks(model):
            del block.forward


def _structure(block: nn.Module) -> tuple[Any, ...]:
    """Equal for blocks that compute alike: modules with their settings, and the shapes of parameters."""
    return repr(block), tuple((name, value.shape, value.requires_grad) for name, value in block.named_parameters())


def _shapes(inputs: Any) -> tuple[Any, ...]:
    tensors = (part for part in tree_leaves(inputs) if isinstance(part, Tensor))
    return tuple((part.shape, part.dtype, part.requires_grad) for part in tensors)


def activation_bytes(sketch: Sketch, config: Config, tokens: int) -> float:
    """What one batch keeps for its backward pass; with checkpointing, the blocks' inputs and one block's inside."""
    kept = Kept(sketch.model)
    with (
        each_kind_runs_twice(sketch.model, kept),
        torch.autograd.graph.saved_tensors_hooks(kept.add, lambda tensor: tensor),
        Precision(config.train.precision, CPU).autocast(),
    ):
        features = sketch.forward(tokens)
    kept.add(features)
    wide = 2 if config.train.precision == "float64" else 1  # the fake model is a float32 one
    inside = float(wide * kept.bytes)
    if not config.train.checkpointing:
        return inside
    layers = max(1, len(blocks(sketch.model)))
    return layers * tokens * features.shape[-1] * 4 + inside / layers
