"""Where numbers cease to be finite: the update is replayed, each site's output and the gradient there are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bathy.sites.site import declared_sites


def first_overflow(model: nn.Module, replay: Callable[[], object]) -> str:
    """The first place that is not finite while `replay` runs forward and backward passes over the model."""
    events: list[str] = []
    with _checking(model, events):
        replay()
    return events[0] if events else "the loss or the gradient of the embeddings"


@contextmanager
def _checking(model: nn.Module, events: list[str]) -> Iterator[None]:
    def check(name: str, x: Tensor) -> None:
        if not events and not torch.isfinite(x).all():
            events.append(name)

    def watch(name: str, x: Tensor) -> None:
        check(f"{name} (forward)", x)
        if x.requires_grad:
            x.register_hook(partial(check, f"{name} (backward)"))

    sites = declared_sites(model)
    handles: list[Any] = [site.on("output", partial(watch, site.name)) for site in sites] or _on_leaves(model, watch)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _on_leaves(model: nn.Module, watch: Callable[[str, Tensor], None]) -> list[RemovableHandle]:
    """Hooks on every module without children, for a model that declares no sites."""

    def after(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            watch(name, output)

    leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    return [module.register_forward_hook(partial(after, name)) for name, module in leaves]
