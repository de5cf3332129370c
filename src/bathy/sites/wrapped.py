"""Models that other tools have wrapped: what must come before what."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel

from bathy.errors import ModelError

ORDER = "model = …; bathy.stabilise_(model, batch); then {wrap}; then the optimiser"


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
        if isinstance(parameter, DTensor) or type(parameter).__name__ == "FlatParameter":
            raise ModelError(f"{name} is sharded already; stabilise before that: " + ORDER.format(wrap="fully_shard(model)"))
