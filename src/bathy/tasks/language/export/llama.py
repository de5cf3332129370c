"""LlamaForCausalLM, and Qwen3ForCausalLM where q and k are normalised: Pre-LN, RMSNorm, rotary positions, SwiGLU."""

from __future__ import annotations

from typing import Any

from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import require
from bathy.tasks.language.export.parts import EPSILON, Needs, Weights, check, embeddings, filled, misfits

NEEDS: Needs = {
    "norm": ("rms",), "positions": ("rotary",), "feed_forward": ("swiglu",), "embedding_norm": (False,), "head": ("linear",),
    "logit_cap": (0.0,),
}  # fmt: skip
ROLES = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "fc1": "mlp.up_proj", "fc2": "mlp.down_proj",
}  # fmt: skip


def check_llama(config: TransformerConfig) -> None:
    """Refuse what LlamaForCausalLM cannot hold."""
    check("llama", "LlamaForCausalLM", misfits(config, "decoder", "pre_ln", {**NEEDS, "qk_norm": (False,)}))


def check_qwen3(config: TransformerConfig) -> None:
    """Refuse what Qwen3ForCausalLM cannot hold."""
    needs = {**NEEDS, "qk_norm": (True,), "biases": (False,)}
    check("qwen3", "Qwen3ForCausalLM", misfits(config, "decoder", "pre_ln", needs))


def build_llama(model: Transformer, end: int) -> Any:
    """LlamaForCausalLM with the model's weights."""
    biases = {"attention_bias": model.config.biases, "mlp_bias": model.config.biases}
    return _build("Llama", model, end, biases)


def build_qwen3(model: Transformer, end: int) -> Any:
    """Qwen3ForCausalLM with the model's weights."""
    return _build("Qwen3", model, end, {"attention_bias": False, "use_sliding_window": False})


def _build(kind: str, model: Transformer, end: int, special: dict[str, Any]) -> Any:
    transformers: Any = require("transformers", "export")
    config, (inside, outside, tied) = model.config, embeddings(model, "decoder")
    made = getattr(transformers, f"{kind}Config")(
        vocab_size=config.vocab, hidden_size=config.width, intermediate_size=config.ffn, head_dim=config.head_width,
        num_hidden_layers=config.decoder_layers, num_attention_heads=config.heads, rms_norm_eps=EPSILON,
        num_key_value_heads=config.kv_heads or config.heads, max_position_embeddings=config.longest,
        rope_parameters={"rope_type": "default", "rope_theta": config.rotary_base}, tie_word_embeddings=tied,
        attention_dropout=config.attention_dropout, bos_token_id=end, eos_token_id=end, pad_token_id=None, **special,
    )  # fmt: skip
    weights = {"model.embed_tokens.weight": inside, "lm_head.weight": outside}
    weights["model.norm.weight"] = model.decoder.final.weight  # type: ignore[assignment]
    for i, layer in enumerate(model.decoder.layers):
        weights |= {f"model.layers.{i}.{name}": value for name, value in _layer(layer).items()}
    return filled(getattr(transformers, f"{kind}ForCausalLM")(made), weights)


def _layer(layer: Any) -> Weights:
    weights: Weights = {}
    for matrix in (matrix for part in (layer.self_attention, layer.ffn) for matrix in part.f.matrices()):
        weights[f"{ROLES[matrix.role]}.weight"] = matrix.weight
        if matrix.bias is not None:
            weights[f"{ROLES[matrix.role]}.bias"] = matrix.bias
    weights["input_layernorm.weight"] = layer.self_attention.pre.weight
    weights["post_attention_layernorm.weight"] = layer.ffn.pre.weight
    for name in ("q_norm", "k_norm"):
        if hasattr(norm := getattr(layer.self_attention.f, name), "weight"):
            weights[f"self_attn.{name}.weight"] = norm.weight
    return weights
