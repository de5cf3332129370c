"""Where numbers cease to be finite: the update is replayed, each site listening to its output and to the gradient there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bathy.sites.site import Site, declared_sites


def first_overflow(model: nn.Module, replay: Callable[[], object]) -> str:
    """The first place that is not finite while `replay` runs forward and backward passes over the model."""
    events: list[str] = []
    with _listening(model, events):
        replay()
    return events[0] if events else "the loss or the gradient of the embeddings"


@contextmanager
def _listening(model: nn.Module, events: list[str]) -> Iterator[None]:
    def check(name: str, x: Tensor) -> None:
        if not events and not torch.isfinite(x).all():
            events.append(name)

    def hear(site: Site, x: Tensor) -> None:
        check(f"{site.name} (forward)", x)
        if x.requires_grad:
            x.register_hook(lambda gradient: check(f"{site.name} (backward)", gradient))

    sites = declared_sites(model)
    handles = [site.on("output", lambda x, site=site: hear(site, x)) for site in sites]  # type: ignore[misc]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
