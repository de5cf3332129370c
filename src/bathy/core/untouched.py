"""Whether modules compute as they were written, so that a kernel may compute in their place."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from bathy.kernels.dropout import LEVELS, Dropout


def untouched(module: nn.Module) -> bool:
    """Whether nobody hooked into the modules inside, gave one another `forward`, or compiled it."""
    return not _has_any_global_hook() and _untouched(module)


def _untouched(module: nn.Module) -> bool:
    """Asked for every sub-layer of every pass, hence without a loop over the marks."""
    for part in module._modules.values():
        if part is None:
            continue
        own = part.__dict__
        hooked = own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
        if hooked or "forward" in own or "_compiled_call_impl" in own or (own["_modules"] and not _untouched(part)):
            return False
    return True


def are(kind: type[nn.Module], *modules: nn.Module) -> bool:
    """Whether the modules are of just this class; a parametrized or replaced one is not."""
    return all(type(module) is kind for module in modules)


def usual_rate(dropout: nn.Module, training: bool = True) -> float | None:
    """The rate at which a module drops now; None where that is not for a kernel to say: all, or by another class."""
    rate = dropout.p if type(dropout) is Dropout and training and dropout.training else 0.0
    return rate if type(dropout) is Dropout and round(rate * LEVELS) < LEVELS else None
