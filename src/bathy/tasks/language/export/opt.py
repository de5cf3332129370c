"""OPTForCausalLM with `do_layer_norm_before=False`: Post-LN, LayerNorm, a table of positions, ReLU or GELU."""

from __future__ import annotations

from typing import Any

import torch

from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import require
from bathy.tasks.language.export.gpt2 import NEEDS
from bathy.tasks.language.export.parts import (
    Weights,
    check,
    embeddings,
    filled,
    grouped,
    linear,
    misfits,
    norm,
    positions,
)

OFFSET = 2
"""Rows of OPT's table of positions that come before the first position."""
ROLES = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "out": "self_attn.out_proj"}


def check_opt(config: TransformerConfig) -> None:
    """Refuse what OPTForCausalLM cannot hold."""
    check("opt", "OPTForCausalLM", misfits(config, "decoder", "post_ln", NEEDS) + grouped(config))


def build_opt(model: Transformer, end: int) -> Any:
    """OPTForCausalLM with the model's weights."""
    transformers: Any = require("transformers", "export")
    config, (inside, outside, tied) = model.config, embeddings(model, "decoder")
    made = transformers.OPTConfig(
        vocab_size=config.vocab, hidden_size=config.width, num_hidden_layers=config.decoder_layers, ffn_dim=config.ffn,
        num_attention_heads=config.heads, max_position_embeddings=config.longest, word_embed_proj_dim=config.width,
        activation_function=config.feed_forward, do_layer_norm_before=False, tie_word_embeddings=tied,
        dropout=config.dropout, attention_dropout=config.attention_dropout, bos_token_id=end, eos_token_id=end,
        pad_token_id=end,
    )  # fmt: skip
    table = positions(model, "decoder")
    weights = {
        "model.decoder.embed_tokens.weight": inside,
        "model.decoder.embed_positions.weight": torch.cat([table.new_zeros(OFFSET, config.width), table]),
        "lm_head.weight": outside,
    }
    for i, layer in enumerate(model.decoder.layers):
        weights |= _layer(f"model.decoder.layers.{i}", layer)
    return filled(transformers.OPTForCausalLM(made), weights)


def _layer(path: str, layer: Any) -> Weights:
    attention, ffn = layer.self_attention, layer.ffn
    weights = norm(f"{path}.self_attn_layer_norm", attention.post) | norm(f"{path}.final_layer_norm", ffn.post)
    for matrix in (*attention.f.matrices(), *ffn.f.matrices()):
        weights |= linear(f"{path}.{ROLES.get(matrix.role, matrix.role)}", matrix.weight, matrix.bias)
    return weights
