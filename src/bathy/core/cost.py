"""Floating-point operations of a forward pass, counted from the model's own matrices.

A product of an n × a and an a × b matrix is 2nab operations. Counted are all matrices (embeddings are looked up, the output
matrix is not) and attention's two products; norms, dropout, activations and the optimiser are not: they are overhead.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bathy.core.config import TransformerConfig
from bathy.core.residual import Matrix, Residual, residuals
from bathy.core.transformer import Transformer

TRAINING = 3
"""Forward and backward pass together, in forward passes: the backward pass costs twice the forward pass."""


def skeleton(config: TransformerConfig) -> Transformer:
    """The model of a config without memory for its weights, for counting."""
    with torch.device("meta"):
        return Transformer(config)


def matrix_flops(model: Transformer) -> dict[str, float]:
    """Operations of the matrices for each token of each stack; the output matrix reads the last stack's tokens."""
    result = dict.fromkeys(model.config.stacks, 0.0)
    for _, residual in residuals(model):
        for matrix in residual.f.matrices():
            result[_reads_tokens_of(residual, matrix)] += 2 * matrix.weight.numel()
    head = 0 if model.head is None else model.head.dense.weight.numel()
    result[model.config.stacks[-1]] += 2 * (model.output_weight.numel() + head)
    return result


def attention_flops(model: Transformer, lengths: Mapping[str, Tensor]) -> float:
    """Operations of attention's two products, q·kᵀ and p·v, for sequences of these lengths in each stack."""
    return Operations(model).attention(lengths)


def batch_flops(model: Transformer, lengths: Mapping[str, Tensor]) -> float:
    """Operations of one update, forward and backward, for sequences of these lengths in each stack."""
    return Operations(model).update(lengths)


class Operations:
    """What a model costs, counted once: operations for each token of a stack, and for each pair of tokens that attend."""

    def __init__(self, model: Transformer) -> None:
        self.per_token = matrix_flops(model)
        self.per_pair: dict[tuple[str, str], float] = {}
        """By kind of attention and its stack."""
        for _, residual in residuals(model):
            if residual.f.kind != "ffn":
                key = residual.f.kind, residual.place.stack
                self.per_pair[key] = self.per_pair.get(key, 0.0) + 4 * residual.f.inner_width

    def attention(self, lengths: Mapping[str, Tensor]) -> float:
        """A decoder's self-attention sees half of its square; cross-attention sees the encoder's tokens."""
        total = 0.0
        for (kind, stack), cost in self.per_pair.items():
            own = lengths[stack].double()
            if kind == "cross_attention":
                seen = own * lengths["encoder"].double()
            else:
                seen = own * (own + 1) / 2 if stack == "decoder" else own.square()
            total += cost * float(seen.sum())
        return total

    def update(self, lengths: Mapping[str, Tensor]) -> float:
        """Forward and backward pass over sequences of these lengths in each stack."""
        matrices = sum(cost * float(lengths[stack].sum()) for stack, cost in self.per_token.items())
        return TRAINING * (matrices + self.attention(lengths))


def _reads_tokens_of(residual: Residual, matrix: Matrix) -> str:
    """The stack whose tokens go through the matrix: cross-attention's k and v read the encoder's."""
    return "encoder" if residual.f.kind == "cross_attention" and matrix.role in ("k", "v") else residual.place.stack
