"""Small models of every class of a library, by general rules: sizes are recognised by their names, batches by the arguments."""

import inspect
import math
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

WIDTH, HEADS, FFN, VOCAB, IMAGE, PATCH = 32, 4, 64, 99, 32, 8
SIZES: list[tuple[int, tuple[str, ...]]] = [
    (WIDTH, ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "width", "hidden_dim", "d_embed",
            "embedding_size",
            "encoder_embed_dim", "decoder_embed_dim", "decoder_hidden_size", "encoder_hidden_size", "projection_dim",
            "word_embed_proj_dim", "input_embedding_size", "embedding_dim", "text_embed_dim", "dim_model", "d_latents",
            "qk_channels", "v_channels", "encoder_dim", "decoder_dim", "out_dim", "out_features_dim", "model_dim",
            "feat_proj_dim",
            "conv_dim_size", "hidden_channels", "attention_hidden_size", "lru_width", "d_inner_size", "vision_hidden_size",
            "backbone_dim", "feature_size", "audio_embed_dim", "q_lora_rank", "kv_lora_rank", "encoder_hidden_dim")),
    (HEADS, ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
            "decoder_num_attention_heads", "encoder_num_attention_heads", "num_self_attention_heads",
            "num_cross_attention_heads",
            "num_key_value_heads", "num_kv_heads", "n_head_kv", "attention_heads", "num_global_heads", "num_decoder_heads",
            "linear_num_key_heads", "linear_num_value_heads", "num_query_heads", "num_encoder_attention_heads")),
    (FFN, ("intermediate_size", "d_ff", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner",
           "ffn_hidden_size",
          "inner_dim", "moe_intermediate_size", "dim_feedforward", "shared_expert_intermediate_size", "mlp_dim",
            "ffn_embed_dim",
          "encoder_intermediate_size", "decoder_intermediate_size", "linear_units", "hidden_mlp_size", "ff_dim",
          "expert_ffn_hidden_size", "feed_forward_size", "encoder_feedforward_dim", "decoder_feedforward_dim")),
    (WIDTH // HEADS, ("head_dim", "d_kv", "d_head", "attention_head_size", "kv_channels", "linear_key_head_dim",
            "linear_value_head_dim",
                     "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "rotary_dim", "head_size",
            "global_head_dim")),
    (VOCAB, ("vocab_size", "src_vocab_size", "tgt_vocab_size", "n_vocab", "text_vocab_size", "char_vocab_size")),
    (64, ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "max_source_positions", "n_ctx",
         "max_target_positions", "seq_length", "max_2d_position_embeddings_small", "max_seq_length", "block_size")),
    (IMAGE, ("image_size", "img_size", "input_size")),
    (PATCH, ("patch_size",)),
    (4, ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_buckets_small", "n_group_small")),
    (2, ("num_experts_per_tok", "experts_per_token", "moe_top_k", "top_k_experts", "n_group", "topk_group")),
    (1, ("first_k_dense_replace",)),
    (16, ("num_queries", "num_query_tokens", "num_latents", "num_mel_bins", "n_mels", "relative_attention_num_buckets")),
]  # fmt: skip
DEPTHS = {
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "depth", "num_encoder_layers",
    "num_decoder_layers", "decoder_num_hidden_layers", "encoder_num_hidden_layers", "num_self_attends_per_block", "n_blocks",
    "decoder_num_layers", "num_block_layers", "layers",
}  # fmt: skip
BY_NAME = {name: size for size, names in SIZES for name in names}
LISTS = {
    "depths",
    "hidden_sizes",
    "embed_dims",
    "num_heads",
    "num_attention_heads",
    "encoder_hidden_sizes",
    "sr_ratios",
    "layers",
}
MOST_PARAMETERS = 8_000_000


def shrunk(config: dict[str, Any], depth: int) -> dict[str, Any]:
    """The config's settings with every size that is recognised made small."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and name.endswith("config") and value:
            found[name] = {"model_type": value["model_type"]} | shrunk(value, depth) if "model_type" in value else value
        elif isinstance(value, bool) or value is None:
            continue
        elif isinstance(value, int) and name in DEPTHS:
            found[name] = depth
        elif isinstance(value, int) and name in BY_NAME:
            found[name] = BY_NAME[name]
        elif isinstance(value, int) and name.endswith("token_id") and value >= VOCAB:
            found[name] = 1
        elif isinstance(value, list) and name == "depths":
            found[name] = [1 if i != 2 else depth for i in range(len(value))]
    return found


def of_transformers(kind: str, depth: int, own: bool = False, mapping: str = "MODEL_MAPPING_NAMES") -> nn.Module:
    """A small model of one of Hugging Face's kinds, its base class, with Xavier-like matrices or its `own` initialisation."""
    import transformers
    from transformers.models.auto import modeling_auto

    name = getattr(modeling_auto, mapping)[kind]
    classes = [getattr(transformers, n) for n in ([name] if isinstance(name, str) else name)]
    base = transformers.CONFIG_MAPPING[kind]()
    config = type(base)(**shrunk(base.to_dict(), depth))
    with torch.device("meta"):
        count = sum(p.numel() for p in classes[0](config).parameters())
    if count > MOST_PARAMETERS:
        raise Excluded(f"has {count / 1e6:.0f} million parameters by the general rules for small sizes")
    torch.manual_seed(0)
    model = classes[0](config)
    return model if own else weigh_(model)


class Excluded(Exception):  # noqa: N818
    """Why a class is not tried."""


def weigh_(model: nn.Module) -> nn.Module:
    """The model with matrices as Xavier draws them and embeddings of variance 1, so that depth is felt."""
    generator = torch.Generator().manual_seed(1)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    layers = {id(p) for module in model.modules() if isinstance(module, nn.Linear) for p in module.parameters(recurse=False)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            table = id(parameter) in tables or (id(parameter) not in layers and ("embed" in name or "token" in name))
            if parameter.dim() in (2, 3) and min(parameter.shape[-2:]) > 1 and parameter.dtype.is_floating_point:
                std = 1.0 if table else math.sqrt(2 / (parameter.shape[-1] + parameter.shape[-2]))
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model


def ids(rows: int = 2, length: int = 8) -> Tensor:
    """Tokens that every vocabulary has."""
    return torch.randint(5, VOCAB - 5, (rows, length), generator=torch.Generator().manual_seed(1))


def noise(*shape: int) -> Tensor:
    """Numbers of variance 1, the same each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def batches(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Batches to try, by what the model's forward takes."""
    config = getattr(model, "config", None)
    names = list(inspect.signature(model.forward).parameters)
    main = getattr(model, "main_input_name", names[0])
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or IMAGE
    size = size if isinstance(size, int) else max(size)
    channels = getattr(vision, "num_channels", 3) or 3
    bins = getattr(config, "num_mel_bins", 16) or 16
    frames = 2 * getattr(config, "max_source_positions", 32)
    options: dict[str, list[Any]] = {
        "input_ids": [ids(), ids(2, 16), ids(2, 64)],
        "pixel_values": [noise(2, channels, size, size), noise(2, 64, channels * 64), noise(2, 4, channels, size, size)],
        "input_values": [noise(2, 4000), noise(2, 64, bins), noise(2, 1, 4000)],
        "input_features": [noise(2, bins, frames), noise(2, frames, bins), noise(2, 64, bins)],
        "inputs_embeds": [noise(2, 8, WIDTH)],
        "past_values": [noise(2, getattr(config, "context_length", 32) or 32, getattr(config, "num_input_channels", 1) or 1)],
    }
    decoder = {"decoder_input_ids": ids(2, 6)} if "decoder_input_ids" in names else {}
    both = {"input_ids": ids(), "pixel_values": options["pixel_values"][0]}
    for value in options.get(main, []):
        yield {main: value} | decoder
    if main in both and {"input_ids", "pixel_values"} <= set(names):
        yield both | decoder
    for name, values in options.items():
        if name in names and name != main:
            yield from ({name: value} | decoder for value in values)


def runs(model: nn.Module) -> dict[str, Any]:
    """The first batch that the model takes in both modes."""
    problem = "no argument of its forward is recognised"
    for batch in batches(model):
        try:
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                model.eval()(**batch)
                model.train()(**batch)
            return batch
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}"
    raise Excluded(f"no batch made by the general rules runs ({problem})")
