"""Small models of every class of a library, by general rules: sizes are recognised by their names, batches by the arguments."""

import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterator
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
Sizes = Callable[[str, Any, dict[str, Any]], Any]
"""A setting's small value from its name, its value and its config; nothing where it stays as it is."""


def shrunk(config: dict[str, Any], depth: int | None, small: Sizes) -> dict[str, Any]:
    """The config's settings with `depth` layers, or all, and every size that is recognised made small."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name == "per_layer_config" and isinstance(value, dict) and depth:
            found[name] = {layer: settings for layer, settings in value.items() if int(layer) < depth}
        elif isinstance(value, dict) and name.endswith("config") and value:
            found[name] = {"model_type": value["model_type"]} | shrunk(value, depth, small) if "model_type" in value else value
        elif type(value) is int and name in DEPTHS:
            found[name] = depth or value
        elif isinstance(value, list) and name == "depths" and depth:
            found[name] = [1 if i != 2 else depth for i in range(len(value))]
        elif (size := small(name, value, config)) is not None:
            found[name] = size
    return found


def by_name(name: str, value: Any, config: dict[str, Any]) -> Any:
    """One small size for all settings of a name."""
    if type(value) is int and name.endswith("token_id") and name not in BY_NAME:
        return 1 if value >= VOCAB else None
    return BY_NAME.get(name) if type(value) is int else None


def filled(name: str, value: Any, config: dict[str, Any]) -> Any:
    """By name, also where the config leaves a size open or gives a picture's two sides; without a cache."""
    if name == "use_cache":
        return False
    if type(value) is int and "vocab_size" in name:
        return VOCAB
    if type(value) is int and name in ("moe_k", "moe_topk", "num_experts_per_token"):
        return 2
    if isinstance(value, (list, tuple)) and BY_NAME.get(name) in (IMAGE, PATCH):
        return [BY_NAME[name]] * len(value)
    return BY_NAME.get(name) if value is None else by_name(name, value, config)


def by_heads(name: str, value: Any, config: dict[str, Any]) -> Any:
    """Two or three heads, and widths in proportion: what depends on a head's width or on a ratio still fits."""
    if type(value) is not int:
        return as_they_are(name, value, config)
    if BY_NAME.get(name) == WIDTH // HEADS:
        return None
    heads = next((config[each] for each in HEAD_NAMES if type(config.get(each)) is int and config[each] > 1), 1)
    times = next((heads // few for few in (2, 3, 5, 7) if heads % few == 0), 1)
    if name.endswith("heads") or name in HEAD_NAMES:
        return max(1, value // times)
    wide = BY_NAME.get(name) in (WIDTH, FFN) and name not in ("q_lora_rank", "kv_lora_rank")
    return max(1, value // times) if wide else as_they_are(name, value, config)


def as_they_are(name: str, value: Any, config: dict[str, Any]) -> Any:
    """Fewer layers, tokens and experts, no smaller size; without a cache."""
    few = BY_NAME.get(name) in (VOCAB, 4, 2) or BY_NAME.get(name) is None
    return filled(name, value, config) if few and value is not None else None


HEAD_NAMES = next(names for size, names in SIZES if size == HEADS)
WAYS: tuple[tuple[Sizes, bool], ...] = (
    (by_name, False), (filled, False), (by_heads, False), (filled, True), (as_they_are, False),
)  # fmt: skip
"""Ways to make a config small, and whether it keeps all its layers, in the order in which they are tried."""


def of_transformers(
    kind: str, depth: int | None, own: bool = False, mapping: str = "MODEL_MAPPING_NAMES", small: Sizes = by_name,
    most: int = MOST_PARAMETERS,
) -> nn.Module:  # fmt: skip
    """A small model of one of Hugging Face's kinds, its base class, with Xavier-like matrices or its `own` initialisation."""
    import transformers
    from transformers.models.auto import modeling_auto

    name = getattr(modeling_auto, mapping)[kind]
    classes = [getattr(transformers, n) for n in ([name] if isinstance(name, str) else name)]
    base = transformers.CONFIG_MAPPING[kind]()
    config = _of_class(type(base)(**shrunk(base.to_dict(), depth, small)), classes[0])
    with torch.device("meta"):
        count = sum(p.numel() for p in classes[0](config).parameters())
    if count > most:
        raise Excluded(f"has {count / 1e6:.0f} million parameters by the general rules for small sizes")
    torch.manual_seed(0)
    model = classes[0](config)
    return model if own else weigh_(model)


def _of_class(config: Any, model: Any) -> Any:
    """The config, or the part of it that the class takes: a language model inside a model of pictures or sound."""
    wanted = getattr(model, "config_class", None)
    if wanted is None or isinstance(config, wanted):
        return config
    return next((part for part in vars(config).values() if isinstance(part, wanted)), config)


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
    sides = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    size = size if isinstance(size, int) else max(size)
    channels = getattr(vision, "num_channels", 3) or 3
    bins = getattr(config, "num_mel_bins", 16) or 16
    frames = 2 * getattr(config, "max_source_positions", 32)
    options: dict[str, list[Any]] = {
        "input_ids": [ids(), ids(2, 16), ids(2, 64)],
        "pixel_values": [noise(2, channels, size, size), noise(2, 64, channels * 64), noise(2, 4, channels, size, size),
                         noise(2, channels, *sides)],
        "input_values": [noise(2, 4000), noise(2, 64, bins), noise(2, 1, 4000)],
        "input_features": [noise(2, bins, frames), noise(2, frames, bins), noise(2, 64, bins)],
        "inputs_embeds": [noise(2, 8, WIDTH)],
        "past_values": [noise(2, getattr(config, "context_length", 32) or 32, getattr(config, "num_input_channels", 1) or 1)],
    }  # fmt: skip
    decoder = {"decoder_input_ids": ids(2, 6)} if "decoder_input_ids" in names else {}
    both = {"input_ids": ids(), "pixel_values": options["pixel_values"][0]}
    for value in options.get(main, []):
        yield {main: value} | decoder
    if main in both and {"input_ids", "pixel_values"} <= set(names):
        yield both | decoder
    for name, values in options.items():
        if name in names and name != main:
            yield from ({name: value} | decoder for value in values)
    yield from special(names, config, vision)


def special(names: list[str], config: Any, vision: Any) -> Iterator[dict[str, Any]]:
    """Batches of models that also take where words stand on a page, which frames are real, or pictures as loose patches."""
    if {"input_ids", "bbox"} <= set(names):
        yield {"input_ids": ids(), "bbox": torch.zeros(2, 8, 4, dtype=torch.long)}
    for name in ("input_features", "input_values"):
        bins = getattr(config, "num_mel_bins", None) or getattr(config, "feature_projection_input_dim", None) or 16
        frames = getattr(config, "max_length", None) or 64
        masks = {each: torch.ones(2, frames, dtype=torch.long) for each in names if each in (f"{name}_mask", "attention_mask")}
        if name in names:
            yield {name: noise(2, frames, bins)}
            yield {name: noise(2, frames, bins)} | masks
            yield {name: noise(2, bins, frames)} | masks
    given = next((name for name in ("hidden_states", "pixel_values", "pixel_values_videos") if name in names), "")
    grid = next((name for name in names if name.endswith("grid_thw")), "")
    patch, frames = (getattr(vision, name, None) or 1 for name in ("patch_size", "temporal_patch_size"))
    channels = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", None) or 3
    if given and grid and isinstance(patch, int):
        for size in (channels * frames * patch**2, channels * patch**2):
            yield {given: noise(16, size), grid: torch.tensor([[1, 4, 4]])}
        yield {given: noise(16, channels, patch, patch), grid: torch.tensor([[1, 4, 4]])}


def runs(model: nn.Module) -> dict[str, Any]:
    """The first batch that the model takes in both modes."""
    problem = ""
    for batch in batches(model):
        try:
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                model.eval()(**batch)
                model.train()(**batch)
            return batch
        except Exception as error:
            problem = problem or f"{type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}"
    raise Excluded(f"no batch made by the general rules runs ({problem or 'no argument of its forward is recognised'})")
