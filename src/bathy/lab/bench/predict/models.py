"""The models that a forecast is fitted on: ours in every scheme, torch's own, and Hugging Face's, all called alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bathy
from bathy.errors import require
from bathy.lab.bench.predict.text import PAD, PAIRS, Example, Kind, vocabulary

LONGEST = 64
"""Positions that every model has."""


@dataclass(frozen=True)
class Design:
    """What a model is: who built it, for which kind of text, how deep and wide, and the remedy it was given."""

    family: str
    """A scheme of ours, or torch_post, torch_pre, gpt2, bert, llama."""
    kind: Kind
    depth: int
    """Layers; of an encoder and a decoder together."""
    width: int
    remedy: str = ""
    """Scheme that `stabilise_` was called with; empty: not at all."""
    seed: int = 0

    @property
    def name(self) -> str:
        """All of it in a few letters."""
        return f"{self.family}{'+' + self.remedy if self.remedy else ''} {self.kind} {self.depth}×{self.width} s{self.seed}"

    def build(self, example: Example) -> nn.Module:
        """The model, seeded, stabilised where asked for on the example."""
        torch.manual_seed(self.seed)
        model = FOREIGN[self.family](self) if self.family in FOREIGN else native(self)
        ours = isinstance(model, bathy.Transformer) and any(
            model.config.scheme(stack).profiled for stack in model.config.stacks
        )
        if self.remedy or ours:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # cloned layers are part of the grid
                bathy.stabilise_(model, example.inputs, self.remedy or "admin")
        return model


def native(design: Design) -> nn.Module:
    """One of our models."""
    half = design.depth // 2
    layers = {"causal": (0, design.depth), "masked": (design.depth, 0)}.get(design.kind, (design.depth - half, half))
    return bathy.Transformer(
        bathy.TransformerConfig(
            vocab=vocabulary(design.kind), width=design.width, ffn=4 * design.width, heads=heads(design.width),
            encoder_layers=layers[0], decoder_layers=layers[1], encoder_scheme=design.family, decoder_scheme=design.family,
        )
    )  # fmt: skip


def heads(width: int) -> int:
    """Heads of 16 dimensions."""
    return width // 16


class Torch(nn.Module):
    """torch's own layers between an embedding, learned positions and an output matrix."""

    def __init__(self, design: Design, norm_first: bool) -> None:
        super().__init__()
        width, vocab = design.width, vocabulary(design.kind)
        self.embedding, self.positions = nn.Embedding(vocab, width), nn.Embedding(LONGEST, width)
        self.output, self.causal = nn.Linear(width, vocab), design.kind == "causal"
        parts: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
        if design.kind in PAIRS:
            half = design.depth // 2
            self.body: nn.Module = nn.Transformer(width, heads(width), design.depth - half, half, 4 * width, **parts)
        else:
            layer = nn.TransformerEncoderLayer(width, heads(width), 4 * width, **parts)
            final = nn.LayerNorm(width) if norm_first else None
            self.body = nn.TransformerEncoder(layer, design.depth, final, enable_nested_tensor=False)

    def forward(self, source: Tensor, target_in: Tensor | None = None) -> Tensor:
        """Logits at every position."""
        if target_in is not None:
            mask = nn.Transformer.generate_square_subsequent_mask(target_in.shape[1])
            padding = source.eq(PAD)
            own = {"tgt_mask": mask, "tgt_is_causal": True, "src_key_padding_mask": padding, "memory_key_padding_mask": padding}
            return self.output(self.body(self.embed(source), self.embed(target_in), **own))
        own_mask = nn.Transformer.generate_square_subsequent_mask(source.shape[1]) if self.causal else None
        return self.output(self.body(self.embed(source), mask=own_mask, is_causal=self.causal))

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings plus positions."""
        return self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))


def _hugging_face(design: Design) -> nn.Module:
    hf = require("transformers", "export")
    size = {"vocab_size": vocabulary(design.kind), "pad_token_id": PAD, "use_cache": False}
    layered = {"hidden_size": design.width, "num_hidden_layers": design.depth, "num_attention_heads": heads(design.width)}
    layered |= {"intermediate_size": 4 * design.width, "max_position_embeddings": LONGEST}
    off = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    if design.family == "gpt2":
        gpt = {"n_embd": design.width, "n_layer": design.depth, "n_head": heads(design.width), "n_positions": LONGEST}
        drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 2, "eos_token_id": 3}
        return hf.GPT2LMHeadModel(hf.GPT2Config(**size, **gpt, **drop))
    if design.family == "bert":
        return hf.BertForMaskedLM(hf.BertConfig(**size, **layered, **off))
    return hf.LlamaForCausalLM(hf.LlamaConfig(**size, **layered))


FOREIGN: dict[str, Callable[[Design], nn.Module]] = {
    "torch_post": lambda design: Torch(design, norm_first=False),
    "torch_pre": lambda design: Torch(design, norm_first=True),
    "gpt2": _hugging_face,
    "bert": _hugging_face,
    "llama": _hugging_face,
}
"""Families that are not ours."""


def objective(model: nn.Module, example: Example) -> Tensor:
    """Cross-entropy over what is asked for."""
    output = model(*example.inputs)
    logits = output if isinstance(output, Tensor) else output.logits
    return F.cross_entropy(logits.flatten(0, 1), example.target.flatten(), ignore_index=PAD)
