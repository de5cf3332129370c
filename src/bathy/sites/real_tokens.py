"""Which tokens of a stack are real: padding is left out of every statistic, and it is said how that was known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from bathy.errors import BatchError
from bathy.sites.batch import Batch, KnowsRealTokens, call, first_sentences, known_real_tokens, sentences_within
from bathy.sites.site import Site

Mask = Tensor | Mapping[str, Tensor]
"""True at real tokens (b t): one for all stacks, or one for each by name."""

PADDING = {"src_key_padding_mask", "tgt_key_padding_mask", "key_padding_mask"}
"""Arguments that are true at padding; the others are true at real tokens."""
ALL = "all positions"
OF_ENCODER = ["attention_mask", "src_key_padding_mask", "key_padding_mask", "mask"]
OF_DECODER = ["decoder_attention_mask", "tgt_key_padding_mask"]


class RealTokens:
    """Real tokens of each stack: by `mask`, else by the batch's attention or key-padding mask, else all of them."""

    def __init__(self, model: nn.Module, batch: Batch, sites: Iterable[Site], mask: Mask | None = None, most: int = 0) -> None:
        self.name = "mask"
        if mask is None and isinstance(model, KnowsRealTokens):
            mask, self.name = known_real_tokens(model, batch), "padding id"
        self.mask, self.given, self.most = mask, _arguments(model, batch), most
        self.decoders = {site.stack for site in sites if site.kind == "cross_attention"}
        self.time_first = any(getattr(module, "batch_first", True) is False for module in model.modules())
        self.masks: dict[str, Tensor] = {}
        """True at real positions, in the shape of the stack's own stream, for each stack that was seen."""
        self.rows: dict[str, Tensor] = {}
        self._by_shape: dict[tuple[str, torch.Size], Tensor] = {}
        self.source: dict[str, str] = {}
        """How it was known, by stack."""

    @property
    def counts(self) -> dict[str, int]:
        """Real positions by stack."""
        return {stack: rows.numel() for stack, rows in self.rows.items()}

    def of(self, site: Site, x: Tensor) -> Tensor:
        """Indices of the real positions of the site's stream x, its positions flattened."""
        shape = (site.stack, x.shape[:-1])
        if shape not in self._by_shape:  # pooling and joined tokens change a stack's positions on the way
            name, mask = self._find(site.stack, x)
            rows = mask.flatten().nonzero().squeeze(1).to(x.device)
            if not rows.numel():
                raise BatchError(f"the batch has no real token for the {site.stack}; give it at least one sentence")
            self._by_shape[shape] = rows[: self.most or None]
            if site.stack not in self.rows:
                self.masks[site.stack], self.source[site.stack] = mask, name
                self.rows[site.stack] = self._by_shape[shape]
        return self._by_shape[shape]

    def check(self) -> None:
        """Refuse a mask that fitted no stack."""
        if isinstance(self.mask, Tensor) and "mask" not in self.source.values():
            raise BatchError(
                f"mask is {tuple(self.mask.shape)}, which fits no stack; it is (sentences, tokens), true at real tokens"
            )

    def fill(self, model: nn.Module, batch: Batch, sites: Iterable[Site]) -> Any:
        """See every stack of the model in one forward pass; returns the model's output."""
        handles = [site.on("input", partial(self.of, site)) for site in sites]
        try:
            with torch.no_grad():
                return call(model, batch)
        finally:
            for handle in handles:
                handle.remove()

    def _find(self, stack: str, x: Tensor) -> tuple[str, Tensor]:
        if self.mask is not None:
            mask = self.mask.get(stack) if isinstance(self.mask, Mapping) else self.mask
            fitting = None if mask is None else self._fit(mask.bool(), x)
            if fitting is not None:
                return self.name, fitting
            if mask is not None and not isinstance(self.mask, Tensor):
                raise BatchError(f"mask[{stack!r}] is {tuple(mask.shape)}; the stream there is {tuple(x.shape[:-1])}")
        for name in OF_DECODER if stack in self.decoders else OF_ENCODER:
            mask = self.given.get(name)
            if isinstance(mask, Tensor):
                fitting = self._fit(mask.logical_not() if name in PADDING else mask.bool(), x)
                if fitting is not None:
                    return name, fitting
        return ALL, torch.ones(x.shape[:-1], dtype=torch.bool)

    def _fit(self, mask: Tensor, x: Tensor) -> Tensor | None:
        """The mask in the stream's own order of dimensions, if it fits."""
        turned = mask.T if self.time_first and mask.dim() == 2 else mask
        if turned.shape == x.shape[:-1]:
            return turned
        return turned.flatten() if x.dim() == 2 and turned.numel() == x.shape[0] else None


def first_tokens(
    model: nn.Module, batch: Batch, sites: Sequence[Site], most: int, mask: Mask | None = None
) -> tuple[Batch, RealTokens]:
    """The batch's first sentences that have at most `most` real tokens, and which positions are real.

    Another model's batch stays whole, for only its model knows which dimension is the sentence's; of its positions the first
    `most` count.
    """
    if isinstance(model, KnowsRealTokens) and mask is None:
        batch = first_sentences(batch, sentences_within(known_real_tokens(model, batch), most))
    return batch, RealTokens(model, batch, sites, mask, most)


def _arguments(model: nn.Module, batch: Batch) -> Mapping[str, Any]:
    """The batch by the names of the model's arguments."""
    if isinstance(batch, Mapping):
        return batch
    args = (batch,) if isinstance(batch, Tensor) else tuple(batch)
    return signature(model.forward).bind(*args).arguments
