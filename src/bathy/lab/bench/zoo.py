"""Small models of every class of the installed transformers for causal and masked language modelling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from bathy.errors import require

SMALL = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embed_dim": 64, "emb_dim": 64, "embedding_size": 64,
    "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_layers": 4, "encoder_layers": 4, "decoder_layers": 4,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "ffn_dim": 128, "n_inner": 128,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "d_ff": 128, "hidden_dim": 128, "head_dim": 16, "vocab_size": 100,
    "max_position_embeddings": 64, "n_positions": 64, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "moe_intermediate_size": 64, "word_embed_proj_dim": 64,
}  # fmt: skip
"""Settings that make a model small, where its config has them."""
MAPPINGS = ("MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_MASKED_LM_MAPPING")


def small_models() -> Iterator[tuple[str, Callable[[], tuple[nn.Module, Any]]]]:
    """(class, function that builds it with a batch); building may raise for classes that need more than this."""
    transformers = require("transformers", "export")
    for mapping in MAPPINGS:
        for config in getattr(transformers, mapping):
            yield f"{config.__name__} {mapping.split('_')[2].lower()}", _builder(transformers, mapping, config)


def _builder(transformers: Any, mapping: str, config: Any) -> Callable[[], tuple[nn.Module, Any]]:
    def build() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        default = config()
        own = {name: value for name, value in SMALL.items() if isinstance(getattr(default, name, None), int)}
        kind = getattr(transformers, mapping)[config]
        kind = kind[0] if isinstance(kind, tuple) else kind
        made = config(**own, **_layers(default))
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            if isinstance(getattr(made, name, None), int):
                setattr(made, name, 1)
        model = kind(made)
        if sum(parameter.numel() for parameter in model.parameters()) > 5_000_000:
            raise ValueError("larger than 5 million parameters although its settings are small")
        return model.eval(), {"input_ids": torch.randint(4, 100, (2, 16))}

    return build


def _layers(default: Any) -> dict[str, Any]:
    """Lists with one entry per layer, cut to the small number of layers."""
    cut = {}
    for name in ("layer_types", "attention_types", "mlp_layer_types", "no_rope_layers"):
        value = getattr(default, name, None)
        if isinstance(value, list) and len(value) > 4:
            cut[name] = value[:4]
    return cut
