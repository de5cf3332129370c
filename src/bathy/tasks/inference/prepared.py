"""A whole encoder–decoder as plain calls on packed weights, and its steps."""

# s sentence, k hypothesis, t target position, j cached slot, l layer, h head, d head width, D stream width

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bathy.core.transformer import Transformer
from bathy.kernels.packed import PackedLinear
from bathy.tasks.inference.parts import DecoderLayer, EncoderLayer, Layout, ends
from bathy.tasks.special_tokens import BOS, PAD

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest difference between a prepared decoder's logits and the model's, relative to the largest; 0.1 in half precision."""


class Prepared:
    """An encoder–decoder in evaluation mode as plain functions on packed weights."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.config = model, model.config
        self.heads, self.width = model.config.heads, model.config.width
        self.encoder = [EncoderLayer(layer) for layer in model.encoder.layers]
        self.decoder = [DecoderLayer(layer) for layer in model.decoder.layers]
        self.ends = {name: ends(model.get_submodule(name)) for name in model.config.stacks}
        self.output = PackedLinear(model.output_weight, None)
        self.embedding = model.get_parameter(
            f"embeddings.{'shared' if model.config.tie_embeddings else 'decoder'}.weight"
        ).detach()
        self.factor = math.sqrt(self.width) if model.config.embedding_scale == "sqrt_width" else 1.0

    @property
    def output_weight(self) -> Tensor:
        """The model's output matrix, for its device and number format."""
        return self.model.output_weight

    def encode(self, source: Tensor) -> tuple[Tensor, Layout]:
        """The encoder's output at real tokens, (real tokens) × D, and where those are."""
        layout, (first, final) = Layout(source, self.output_weight, self.heads), self.ends["encoder"]
        x = first(layout.gather(self.model.embed(source, "encoder").flatten(0, 1)))
        for layer in self.encoder:
            x = layer(x, layout, self.heads)
        return final(x), layout

    def embed(self, tokens_sk: Tensor, position: int) -> Tensor:
        """Embeddings of the hypotheses' last tokens, all at one position, (s·k) × D."""
        where = slice(position, position + 1)
        if self.config.embedding_norm:
            return self.model.embed(tokens_sk, "decoder", where).flatten(0, 1)
        rows = self.embedding.index_select(0, tokens_sk.flatten())
        return torch.add(self.model.decoder_positions[where], rows, alpha=self.factor)  # type: ignore[index]

    @torch.inference_mode()
    def agrees(self) -> bool:
        """Whether a few steps, with padding and a change of hypotheses, give the model's own logits."""
        vocab, generator = self.config.vocab, torch.Generator().manual_seed(0)
        if self.config.max_length < 5 or vocab < 5:
            return False
        source, first, second = (torch.randint(4, vocab, (2, n), generator=generator) for n in (5, 2, 2))
        source[1, 3:] = PAD
        start, steps, found = torch.full((2, 2), BOS), PreparedSteps(self, source, 2), []
        for tokens, parents in ((start[:, :1], [0, 0, 1, 1]), (first, [1, 0, 3, 2]), (second, [0, 1, 2, 3])):
            found.append(steps.step(tokens)[:, 0])
            steps.follow_(parents)  # after the second step each sentence's two hypotheses change places
        seen = [start[:, :1], torch.cat([start[:, :1], first[:, :1]], 1)]
        seen.append(torch.cat([start[:, :1], first[:, 1:], second[:, :1]], 1))
        expected = [self.model(source, history)[:, -1] for history in seen]
        tolerance = TOLERANCE.get(self.output_weight.dtype, 0.1)
        pairs = zip(found, expected, strict=True)
        return all(bool((a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1)) for a, b in pairs)


class PreparedSteps:
    """Steps of a prepared decoder.

    A hypothesis' keys and values stay in the slot they were written to, k slots per step and sentence; a mask says which slots
    are in whose history. `follow_` changes the mask alone, so that a step copies nothing. When slots run full, those that no
    hypothesis sees any more are dropped.
    """

    ROOM = 64
    """Slots below which nothing is dropped."""

    def __init__(self, decoder: Prepared, source: Tensor, beams: int) -> None:
        self.decoder, self.beams, self.sentences = decoder, beams, len(source)
        memory, layout = decoder.encode(source)
        self.memory_mask = layout.mask
        self.memory_kv = [layer.cross.keys_values(memory, layout, decoder.heads) for layer in decoder.decoder]
        """Keys and values of the encoder's output, s h t d each, for every layer."""
        self.length, self.slots, self.full = 0, 0, self.ROOM
        """Steps taken, slots in use, and slots at which unseen ones are dropped."""
        head = decoder.width // decoder.heads
        self.kv = memory.new_empty(len(decoder.decoder), 2, len(source), decoder.heads, self.ROOM + beams, head)
        """Keys and values of all layers: l 2 s h j d."""
        self.itself = memory.new_full((beams, beams), -torch.inf).fill_diagonal_(0.0)
        self.mask = memory.new_empty(len(source), 0)
        """0 where a slot is in a hypothesis' history, −∞ elsewhere; one beam sees all."""

    def step(self, tokens_sk: Tensor) -> Tensor:
        (s, k), decoder = tokens_sk.shape, self.decoder
        start, self.slots = self.slots, self.slots + k
        if self.slots > self.kv.shape[4]:
            self._grow(start)
        if self.beams > 1:
            self.mask = torch.cat([self.mask, self.itself[:k, :k].repeat(s, 1)], 1)
        mask = self.mask.view(s, k, -1) if k > 1 else None
        if mask is not None and s > 1:
            mask = mask.repeat_interleave(decoder.heads, 0)
        x = decoder.embed(tokens_sk, self.length)
        self.length += 1
        first, final = decoder.ends["decoder"]
        x, shape = first(x), (s, k, decoder.heads)
        for layer, kv, memory_kv in zip(decoder.decoder, self.kv.unbind(0), self.memory_kv, strict=True):
            x = layer(x, shape, kv, start, mask, memory_kv, self.memory_mask)
        return decoder.output(final(x)).view(s, k, -1)

    def follow_(self, parents: Sequence[int]) -> None:
        if self.beams == 1:
            return
        if len(parents) != len(self.mask) or any(parent != i for i, parent in enumerate(parents)):
            self.mask = self.mask.index_select(0, torch.tensor(parents))
        if self.slots >= self.full:
            self._drop_unseen()

    def select_(self, rows: Sequence[int]) -> None:
        chosen = torch.tensor(rows)
        self.sentences = len(rows)
        self.mask = self.mask.unflatten(0, (-1, self.beams))[chosen].flatten(0, 1)
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask.unflatten(0, (-1, self.decoder.heads))[chosen].flatten(0, 1)
        moved = [(i, row) for i, row in enumerate(rows) if i != row]
        for i, row in moved:  # a sentence that ends leaves a hole, which one from the end fills: few move
            self.kv[:, :, i, :, : self.slots] = self.kv[:, :, row, :, : self.slots]
            for part in (part for pair in self.memory_kv for part in pair):
                part[i] = part[row]
        self.kv = self.kv[:, :, : len(rows)]
        self.memory_kv = [(k[: len(rows)], v[: len(rows)]) for k, v in self.memory_kv]

    def _grow(self, used: int) -> None:
        *shape, room, head = self.kv.shape
        grown = self.kv.new_empty(*shape, 2 * room, head)
        grown[..., :used, :] = self.kv[..., :used, :]
        self.kv = grown

    def _drop_unseen(self) -> None:
        visible = self.mask.view(self.sentences, self.beams, -1)
        seen = visible.eq(0).any(1)
        kept = seen.byte().sort(dim=1, descending=True, stable=True).indices[:, : int(seen.sum(1).max())]
        self.slots = kept.shape[1]
        for kv in self.kv:
            kv[..., : self.slots, :] = kv.gather(3, kept[None, :, None, :, None].expand(2, -1, kv.shape[2], -1, kv.shape[4]))
        self.mask = visible.gather(2, kept[:, None].expand(-1, self.beams, -1)).flatten(0, 1)
        self.full = max(self.ROOM, 2 * self.slots)
