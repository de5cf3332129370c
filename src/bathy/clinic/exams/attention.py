"""Attention entropy and largest logit at every attention, whoever computes it."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bathy.clinic.measures import attended
from bathy.clinic.probe import Recorder, Subject
from bathy.clinic.readings import Reading
from bathy.sites.site import Moment, Site


class Attention(Recorder):
    """Every attention of the pass."""

    moments = ("input",)

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.mode = _Listener(subject)

    def hear(self, site: Site, moment: Moment, x: Tensor) -> None:
        """Know which site is being computed."""
        self.subject.real.of(site, x)
        self.mode.site = site

    def listening(self) -> AbstractContextManager[Any]:
        return self.mode


def attention(subject: Subject) -> list[Reading]:
    """Relative entropy (1 uniform, 0 one key) and largest |logit| of the attention in each branch, whole and by head."""
    return subject.recorded(Attention).mode.readings


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
        mask = self.subject.real.masks[site.stack]
        real = mask if mask.shape == (logits.shape[0], logits.shape[-2]) else None
        found = attended(logits, seen.expand_as(logits), real)
        self.readings.append(self.subject.reading("attention", "attention_entropy", found.entropy, site))
        self.readings.append(self.subject.reading("attention", "largest_logit", found.largest, site))
        for head, (entropy, logit) in enumerate(zip(found.entropies, found.logits, strict=True), 1):
            self.readings.append(self.subject.reading("attention", "head_entropy", entropy, site, role=f"head {head}"))
            self.readings.append(self.subject.reading("attention", "head_logit", logit, site, role=f"head {head}"))


def _seen(mask: Tensor) -> Tensor:
    """Where an additive mask, or masked logits, leave a key visible."""
    return mask > torch.finfo(mask.dtype).min / 2


def scaled_logits(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    """q · kᵀ · scale, as scaled_dot_product_attention computes it; keys of grouped heads are repeated."""
    if q.shape[-3] != k.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    return q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
