"""The Hugging Face classes that hold language models: one row each."""

from __future__ import annotations

from typing import Any

import torch

from bathy.core.transformer import Transformer, TransformerConfig
from bathy.tasks.language.export.peer import Peer, Weights, named

EPSILON = 1e-5
"""Added to the variance by all our norms."""


def llama(config: TransformerConfig, end: int) -> dict[str, Any]:
    """LlamaConfig's settings; Qwen3Config has them too."""
    return {
        "vocab_size": config.vocab, "hidden_size": config.width, "intermediate_size": config.ffn,
        "head_dim": config.head_width, "num_hidden_layers": config.decoder_layers, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads or config.heads, "max_position_embeddings": config.longest,
        "rms_norm_eps": EPSILON, "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "attention_dropout": config.attention_dropout, "attention_bias": config.biases, "mlp_bias": config.biases,
        "use_sliding_window": False, "bos_token_id": end, "eos_token_id": end, "pad_token_id": None,
    }  # fmt: skip


def gpt2(config: TransformerConfig, end: int) -> dict[str, Any]:
    """GPT2Config's settings."""
    return {
        "vocab_size": config.vocab, "n_positions": config.longest, "n_embd": config.width, "n_layer": config.decoder_layers,
        "n_head": config.heads, "n_inner": config.ffn, "activation_function": config.feed_forward,
        "layer_norm_epsilon": EPSILON, "resid_pdrop": config.dropout, "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout, "bos_token_id": end, "eos_token_id": end,
    }  # fmt: skip


def opt(config: TransformerConfig, end: int) -> dict[str, Any]:
    """OPTConfig's settings, for Post-LN."""
    return {
        "vocab_size": config.vocab, "hidden_size": config.width, "num_hidden_layers": config.decoder_layers,
        "ffn_dim": config.ffn, "num_attention_heads": config.heads, "max_position_embeddings": config.longest,
        "word_embed_proj_dim": config.width, "activation_function": config.feed_forward, "do_layer_norm_before": False,
        "dropout": config.dropout, "attention_dropout": config.attention_dropout, "bos_token_id": end, "eos_token_id": end,
        "pad_token_id": end,
    }  # fmt: skip


def bert(config: TransformerConfig, end: int) -> dict[str, Any]:
    """BertConfig's settings."""
    return {
        "vocab_size": config.vocab, "hidden_size": config.width, "num_hidden_layers": config.encoder_layers,
        "intermediate_size": config.ffn, "num_attention_heads": config.heads, "max_position_embeddings": config.longest,
        "layer_norm_eps": EPSILON, "hidden_act": config.feed_forward, "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout, "pad_token_id": end,
    }  # fmt: skip


def bert_extra(model: Transformer) -> Weights:
    """BERT's normalised embeddings and its head; its two kinds of token add nothing."""
    assert model.head is not None
    head = "cls.predictions"
    return {
        "bert.embeddings.token_type_embeddings.weight": torch.zeros(2, model.config.width),
        f"{head}.bias": model.head.bias,
        f"{head}.decoder.bias": model.head.bias,
        **named("bert.embeddings.LayerNorm", model.embedding_norms["encoder"]),
        **named(f"{head}.transform.dense", model.head.dense),
        **named(f"{head}.transform.LayerNorm", model.head.norm),
    }


PLAIN = {"embedding_norm": (False,), "head": ("linear",), "logit_cap": (0.0,)}
MODERN = {"norm": ("rms",), "positions": ("rotary",), "feed_forward": ("swiglu",), **PLAIN}
CLASSIC = {
    "norm": ("layer",), "positions": ("learned", "sinusoidal"), "feed_forward": ("gelu", "relu"), "qk_norm": (False,), **PLAIN,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "settings": llama, "scheme": "pre_ln", "grouped": True, "layer": "model.layers.{}",
    "outer": {"input": "model.embed_tokens", "output": "lm_head", "final": "model.norm"},
    "norms": ("input_layernorm", "post_attention_layernorm"),
    "roles": {
        "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "out": "self_attn.o_proj",
        "gate": "mlp.gate_proj", "fc1": "mlp.up_proj", "fc2": "mlp.down_proj", "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
    },
}  # fmt: skip
CLASSES: dict[str, Peer] = {
    "llama": Peer("LlamaForCausalLM", "LlamaConfig", needs={**MODERN, "qk_norm": (False,)}, **LLAMA),
    "qwen3": Peer("Qwen3ForCausalLM", "Qwen3Config", needs={**MODERN, "qk_norm": (True,), "biases": (False,)}, **LLAMA),
    "gpt2": Peer(
        "GPT2LMHeadModel", "GPT2Config", gpt2, "pre_ln", CLASSIC,
        outer={
            "input": "transformer.wte", "positions": "transformer.wpe", "output": "lm_head", "final": "transformer.ln_f",
        },
        layer="transformer.h.{}",
        roles={
            "q": "attn.c_attn", "k": "attn.c_attn", "v": "attn.c_attn", "out": "attn.c_proj", "fc1": "mlp.c_fc",
            "fc2": "mlp.c_proj",
        },
        norms=("ln_1", "ln_2"), transposed=True,
    ),
    "opt": Peer(
        "OPTForCausalLM", "OPTConfig", opt, "post_ln", CLASSIC,
        outer={
            "input": "model.decoder.embed_tokens", "positions": "model.decoder.embed_positions", "output": "lm_head",
        },
        layer="model.decoder.layers.{}",
        roles={
            "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "out": "self_attn.out_proj",
            "fc1": "fc1", "fc2": "fc2",
        },
        norms=("self_attn_layer_norm", "final_layer_norm"), offset=2,
    ),
    "bert": Peer(
        "BertForMaskedLM", "BertConfig", bert, "post_ln",
        {**CLASSIC, "embedding_norm": (True,), "head": ("bert",)}, stack="encoder",
        outer={
            "input": "bert.embeddings.word_embeddings", "positions": "bert.embeddings.position_embeddings",
            "output": "cls.predictions.decoder",
        },
        layer="bert.encoder.layer.{}",
        roles={
            "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
            "out": "attention.output.dense", "fc1": "intermediate.dense", "fc2": "output.dense",
        },
        norms=("attention.output.LayerNorm", "output.LayerNorm"), extra=bert_extra, auto="AutoModelForMaskedLM",
    ),
}  # fmt: skip
"""--to NAME. OPT is Post-LN with `do_layer_norm_before=False`; ω is folded away before any of them is asked."""
