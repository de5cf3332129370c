# mypy: disable-error-code="union-attr, operator, index"
"""Hugging Face's models with our weights: a second implementation of each block."""

from typing import Any

import torch
import transformers
from torch import Tensor

from bathy import Transformer

LLAMA: dict[str, Any] = {
    "scheme": "pre_ln", "depths": (0, 2), "width": 32, "ffn": 40, "heads": 4, "norm": "rms", "positions": "rotary",
    "feed_forward": "swiglu", "biases": False, "embedding_scale": "one", "init": "normal", "tie_embeddings": False, "pad": -1,
}  # fmt: skip
GPT2 = LLAMA | {"norm": "layer", "positions": "learned", "feed_forward": "gelu", "biases": True, "tie_embeddings": True}
BERT = GPT2 | {"scheme": "post_ln", "depths": (2, 0), "embedding_norm": True, "head": "bert", "pad": 0}


def llama(model: Transformer, kind: str = "Llama", **changes: Any) -> Any:
    """LlamaForCausalLM, or a relative of it, with the weights of a decoder."""
    config = model.config
    settings = {
        "vocab_size": config.vocab, "hidden_size": config.width, "intermediate_size": config.ffn,
        "num_hidden_layers": config.decoder_layers, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads or config.heads, "head_dim": config.head_width, "rms_norm_eps": 1e-5,
        "max_position_embeddings": config.max_length, "tie_word_embeddings": False, "pad_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
    }  # fmt: skip
    made = getattr(transformers, f"{kind}Config")(**settings | changes)
    peer = getattr(transformers, f"{kind}ForCausalLM")(made).to(model.output_weight)
    weights = {"model.embed_tokens.weight": model.embeddings["decoder"].weight, "lm_head.weight": model.output_weight}
    weights["model.norm.weight"] = model.decoder.final.weight
    for i, layer in enumerate(model.decoder.layers):
        weights |= {f"model.layers.{i}.{name}": value for name, value in llama_layer(layer).items()}
    return loaded(peer, weights)


def llama_layer(layer: Any) -> dict[str, Tensor]:
    matrices = {m.role: m.weight for part in (layer.self_attention, layer.ffn) for m in part.f.matrices()}
    names = {
        "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "out": "self_attn.o_proj",
        "gate": "mlp.gate_proj", "fc1": "mlp.up_proj", "fc2": "mlp.down_proj",
    }  # fmt: skip
    weights = {f"{names[role]}.weight": weight for role, weight in matrices.items()}
    weights["input_layernorm.weight"] = layer.self_attention.pre.weight
    weights["post_attention_layernorm.weight"] = layer.ffn.pre.weight
    for part in ("q_norm", "k_norm"):
        if hasattr(norm := getattr(layer.self_attention.f, part), "weight"):
            weights[f"self_attn.{part}.weight"] = norm.weight
    return weights


def gpt2(model: Transformer) -> Any:
    """GPT2LMHeadModel with the weights of a decoder."""
    config = model.config
    made = transformers.GPT2Config(
        vocab_size=config.vocab, n_positions=config.max_length, n_embd=config.width, n_layer=config.decoder_layers,
        n_head=config.heads, n_inner=config.ffn, activation_function="gelu",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    peer = transformers.GPT2LMHeadModel(made).to(model.output_weight)
    weights = {"transformer.wte.weight": model.output_weight, "transformer.wpe.weight": model.decoder_positions}
    weights |= named("transformer.ln_f", model.decoder.final) | {"lm_head.weight": model.output_weight}
    for i, layer in enumerate(model.decoder.layers):
        attention, ffn = layer.self_attention, layer.ffn
        parts = {"attn.c_attn": attention.f.qkv, "attn.c_proj": attention.f.out, "mlp.c_fc": ffn.f.fc1, "mlp.c_proj": ffn.f.fc2}
        for name, part in parts.items():  # stored as inputs × outputs
            weights[f"transformer.h.{i}.{name}.weight"] = part.weight.T.contiguous()
            weights[f"transformer.h.{i}.{name}.bias"] = part.bias
        weights |= named(f"transformer.h.{i}.ln_1", attention.pre) | named(f"transformer.h.{i}.ln_2", ffn.pre)
    return loaded(peer, weights)


def bert(model: Transformer) -> Any:
    """BertForMaskedLM with the weights of an encoder; its second kind of token is not used, its first adds nothing."""
    config = model.config
    made = transformers.BertConfig(
        vocab_size=config.vocab, hidden_size=config.width, num_hidden_layers=config.encoder_layers,
        num_attention_heads=config.heads, intermediate_size=config.ffn, max_position_embeddings=config.max_length,
        layer_norm_eps=1e-5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0,
    )  # fmt: skip
    peer = transformers.BertForMaskedLM(made).to(model.output_weight)
    root, head = "bert.embeddings", "cls.predictions"
    weights = {
        f"{root}.word_embeddings.weight": model.output_weight,
        f"{root}.position_embeddings.weight": model.encoder_positions,
    }
    weights[f"{root}.token_type_embeddings.weight"] = torch.zeros(2, config.width).to(model.output_weight)
    weights |= named(f"{root}.LayerNorm", model.embedding_norms["encoder"]) | named(f"{head}.transform.dense", model.head.dense)
    weights |= named(f"{head}.transform.LayerNorm", model.head.norm)
    weights |= {
        f"{head}.decoder.weight": model.output_weight,
        f"{head}.decoder.bias": model.head.bias,
        f"{head}.bias": model.head.bias,
    }
    for i, layer in enumerate(model.encoder.layers):
        at, attention, ffn = f"bert.encoder.layer.{i}", layer.self_attention, layer.ffn
        for matrix, name in zip(attention.f.matrices(), ("query", "key", "value"), strict=False):
            weights[f"{at}.attention.self.{name}.weight"] = matrix.weight
            weights[f"{at}.attention.self.{name}.bias"] = matrix.bias
        weights |= named(f"{at}.attention.output.dense", attention.f.out) | named(
            f"{at}.attention.output.LayerNorm", attention.post
        )
        weights |= named(f"{at}.intermediate.dense", ffn.f.fc1) | named(f"{at}.output.dense", ffn.f.fc2)
        weights |= named(f"{at}.output.LayerNorm", ffn.post)
    return loaded(peer, weights)


def named(path: str, module: Any) -> dict[str, Tensor]:
    return {f"{path}.{name}": value for name, value in module.named_parameters()}


def loaded(peer: Any, weights: dict[str, Any]) -> Any:
    missing, foreign = peer.load_state_dict({name: value.detach() for name, value in weights.items()}, strict=False)
    assert not foreign and all("rotary" in name or "position_ids" in name for name in missing), (missing, foreign)
    return peer.eval()
