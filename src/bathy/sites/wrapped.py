"""Models that other tools have wrapped: what must come before what."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from bathy.errors import ModelError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

ORDER = "model = …; bathy.stabilise_(model, batch); then {wrap}; then the optimiser"


def is_shard(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether it is this process' part of a tensor that several hold."""
    if type(tensor) in (Tensor, nn.Parameter):
        return False  # DTensor takes half a second to import, and most runs have none
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def refuse_compiled(model: nn.Module) -> None:
    """An error for a model, or a part of one, that is compiled, or has no numbers yet."""
    for path, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            raise ModelError(
                f"{path or type(model).__name__} is compiled, and hooks would make it compile again and again; give the model "
                f"as it was before torch.compile ({path or 'model'}._orig_mod): " + ORDER.format(wrap="torch.compile(model)")
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise ModelError(
                f"{name} is on the meta device and has no numbers; give the model its weights first (to_empty, load)"
            )
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            f"{type(model).__name__} is scripted and takes no hooks; give the model as it was before torch.jit.script"
        )


def refuse_wrapped(model: nn.Module) -> None:
    """An error for a model that is replicated or sharded already: a parameter added now would not be synchronised."""
    for path, module in model.named_modules():
        if isinstance(module, DistributedDataParallel | DataParallel):
            name = type(module).__name__
            raise ModelError(
                f"{path or 'the model'} is wrapped in {name}, which would not average the gradients of ω; stabilise what it "
                f"wraps (model.module) before: " + ORDER.format(wrap=f"{name}(model)")
            )
    for name, parameter in model.named_parameters():
        if is_shard(parameter) or type(parameter).__name__ == "FlatParameter":
            raise ModelError(f"{name} is sharded already; stabilise before that: " + ORDER.format(wrap="fully_shard(model)"))
