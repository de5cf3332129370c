"""GPT2LMHeadModel: Pre-LN, LayerNorm, a table of positions, GELU or ReLU."""

from __future__ import annotations

from typing import Any

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
    "norm": ("layer",), "positions": ("learned", "sinusoidal"), "feed_forward": ("gelu", "relu"), "embedding_norm": (False,),
    "head": ("linear",), "logit_cap": (0.0,), "qk_norm": (False,),
}  # fmt: skip


def check_gpt2(config: TransformerConfig) -> None:
    """Refuse what GPT2LMHeadModel cannot hold."""
    check("gpt2", "GPT2LMHeadModel", misfits(config, "decoder", "pre_ln", NEEDS) + grouped(config))


def build_gpt2(model: Transformer, end: int) -> Any:
    """GPT2LMHeadModel with the model's weights."""
    transformers: Any = require("transformers", "export")
    config, (inside, outside, tied) = model.config, embeddings(model, "decoder")
    made = transformers.GPT2Config(
        vocab_size=config.vocab, n_positions=config.longest, n_embd=config.width, n_layer=config.decoder_layers,
        n_head=config.heads, n_inner=config.ffn, activation_function=config.feed_forward, layer_norm_epsilon=EPSILON,
        resid_pdrop=config.dropout, embd_pdrop=config.dropout, attn_pdrop=config.attention_dropout, tie_word_embeddings=tied,
        bos_token_id=end, eos_token_id=end,
    )  # fmt: skip
    weights = {
        "transformer.wte.weight": inside,
        "transformer.wpe.weight": positions(model, "decoder"),
        "lm_head.weight": outside,
    }
    weights |= norm("transformer.ln_f", model.decoder.final)
    for i, layer in enumerate(model.decoder.layers):
        weights |= _layer(f"transformer.h.{i}", layer)
    return filled(transformers.GPT2LMHeadModel(made), weights, (".attn.bias", ".attn.masked_bias"))


def _layer(path: str, layer: Any) -> Weights:
    attention, ffn = layer.self_attention, layer.ffn
    parts = {"attn.c_attn": attention.f.qkv, "attn.c_proj": attention.f.out, "mlp.c_fc": ffn.f.fc1, "mlp.c_proj": ffn.f.fc2}
    weights = norm(f"{path}.ln_1", attention.pre) | norm(f"{path}.ln_2", ffn.pre)
    for name, part in parts.items():  # GPT-2 stores inputs × outputs
        weights |= linear(f"{path}.{name}", part.weight, part.bias, transposed=True)
    return weights
