"""Attention entropy and largest logit at every attention, whoever computes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bathy.clinic.measures import attended
from bathy.clinic.probe import Subject, scaled_logits, watching
from bathy.clinic.readings import Reading
from bathy.sites.site import Moment, Site


def attention(subject: Subject) -> list[Reading]:
    """Mean relative entropy (1 uniform, 0 one key) and largest |logit| of the attention in each branch, over real queries."""
    mode = _Listener(subject)

    def watch(site: Site, moment: Moment, x: Tensor) -> None:
        mode.site = site

    with watching(subject.sites, watch, "input"), torch.no_grad(), mode:
        subject.forward()
    return mode.readings


class _Listener(TorchDispatchMode):
    """Hears every kernel of scaled_dot_product_attention and every softmax over b h q k, and knows the site being computed."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.subject = subject
        self.site: Site | None = None
        self.readings: list[Reading] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if self.site is not None and name.startswith("_scaled_dot_product"):
            names = [argument.name for argument in func._schema.arguments]
            self._fused(**dict(zip(names, args, strict=False)), **kwargs)
        elif self.site is not None and name in ("_softmax", "_safe_softmax") and args[0].dim() == 4:
            self._record(args[0], _seen(args[0]))
        return func(*args, **kwargs)

    def _fused(self, query: Tensor, key: Tensor, is_causal: bool = False, scale: float | None = None, **other: Any) -> None:
        logits = scaled_logits(query, key, scale)
        mask = other.get("attn_mask", other.get("attn_bias"))
        if mask is not None:
            self._record(logits + mask, _seen(mask))
        else:
            every = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)
            self._record(logits, every.tril() if is_causal else every)

    def _record(self, logits: Tensor, seen: Tensor) -> None:
        site = self.site
        assert site is not None
        mask = self.subject.masks[site.stack]
        real = mask if mask.shape == (logits.shape[0], logits.shape[-2]) else None
        found = attended(logits, seen.expand_as(logits), real)
        self.readings.append(self.subject.reading("attention", "attention_entropy", found.entropy, site))
        self.readings.append(self.subject.reading("attention", "largest_logit", found.largest, site))


def _seen(mask: Tensor) -> Tensor:
    """Where an additive mask, or masked logits, leave a key visible."""
    return mask > torch.finfo(mask.dtype).min / 2
