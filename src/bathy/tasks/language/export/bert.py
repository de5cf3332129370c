"""BertForMaskedLM: an encoder of Post-LN layers with normalised embeddings and BERT's own head."""

from __future__ import annotations

from typing import Any

import torch

from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import require
from bathy.tasks.language.export.parts import (
    EPSILON,
    Needs,
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

NEEDS: Needs = {
    "norm": ("layer",), "positions": ("learned", "sinusoidal"), "feed_forward": ("gelu", "relu"), "embedding_norm": (True,),
    "head": ("bert",), "logit_cap": (0.0,), "qk_norm": (False,),
}  # fmt: skip
ROLES = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value", "out": "attention.output.dense",
    "fc1": "intermediate.dense", "fc2": "output.dense",
}  # fmt: skip


def check_bert(config: TransformerConfig) -> None:
    """Refuse what BertForMaskedLM cannot hold."""
    check("bert", "BertForMaskedLM", misfits(config, "encoder", "post_ln", NEEDS) + grouped(config))


def build_bert(model: Transformer, end: int) -> Any:
    """BertForMaskedLM with the model's weights; its two kinds of token add nothing."""
    transformers: Any = require("transformers", "export")
    config, (inside, outside, tied) = model.config, embeddings(model, "encoder")
    made = transformers.BertConfig(
        vocab_size=config.vocab, hidden_size=config.width, num_hidden_layers=config.encoder_layers,
        intermediate_size=config.ffn, num_attention_heads=config.heads, max_position_embeddings=config.longest,
        layer_norm_eps=EPSILON, hidden_act=config.feed_forward, hidden_dropout_prob=config.dropout, tie_word_embeddings=tied,
        attention_probs_dropout_prob=config.attention_dropout, pad_token_id=end,
    )  # fmt: skip
    assert model.head is not None
    root, head = "bert.embeddings", "cls.predictions"
    weights = {
        f"{root}.word_embeddings.weight": inside,
        f"{root}.position_embeddings.weight": positions(model, "encoder"),
        f"{root}.token_type_embeddings.weight": torch.zeros(2, config.width),
        f"{head}.decoder.weight": outside,
        f"{head}.decoder.bias": model.head.bias,
        f"{head}.bias": model.head.bias,
        **norm(f"{root}.LayerNorm", model.embedding_norms["encoder"]),
        **linear(f"{head}.transform.dense", model.head.dense.weight, model.head.dense.bias),
        **norm(f"{head}.transform.LayerNorm", model.head.norm),
    }
    for i, layer in enumerate(model.encoder.layers):
        weights |= _layer(f"bert.encoder.layer.{i}", layer)
    return filled(transformers.BertForMaskedLM(made), weights)


def _layer(path: str, layer: Any) -> Weights:
    attention, ffn = layer.self_attention, layer.ffn
    weights = norm(f"{path}.attention.output.LayerNorm", attention.post) | norm(f"{path}.output.LayerNorm", ffn.post)
    for matrix in (*attention.f.matrices(), *ffn.f.matrices()):
        weights |= linear(f"{path}.{ROLES[matrix.role]}", matrix.weight, matrix.bias)
    return weights
