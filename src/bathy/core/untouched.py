"""Whether modules compute as they were written, so that a kernel may compute in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from bathy.kernels.dropout import LEVELS, Dropout

_SEEN: dict[tuple[type[nn.Module], Callable[..., Any]], bool] = {}


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
        if (
            hooked
            or "forward" in own
            or not _as_written(type(part))
            or "_compiled_call_impl" in own
            or (own["_modules"] and not _untouched(part))
        ):
            return False
    return True


def _as_written(kind: type[nn.Module]) -> bool:
    """Whether the class has the `forward` that it was written with: nobody put another function in its place."""
    forward = kind.forward
    if (kind, forward) not in _SEEN:
        owner = next(base for base in kind.__mro__ if "forward" in base.__dict__)
        named = (f"{owner.__qualname__}.forward", owner.__module__) == (forward.__qualname__, forward.__module__)
        _SEEN[kind, forward] = owner is nn.Module or (named and not hasattr(forward, "__wrapped__"))
    return _SEEN[kind, forward]


def are(kind: type[nn.Module], *modules: nn.Module) -> bool:
    """Whether the modules are of just this class; a parametrized or replaced one is not."""
    return all(type(module) is kind for module in modules)


def usual_rate(dropout: nn.Module, training: bool = True) -> float | None:
    """The rate at which a module drops now; None where that is not for a kernel to say: all, or by another class."""
    rate = dropout.p if type(dropout) is Dropout and training and dropout.training else 0.0
    return rate if type(dropout) is Dropout and round(rate * LEVELS) < LEVELS else None
