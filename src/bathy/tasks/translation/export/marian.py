"""A folder for Hugging Face: `MarianMTModel.from_pretrained` loads the model, `AutoTokenizer.from_pretrained` its subwords.

Marian is Post-LN with sinusoidal positions that are computed, not stored, so that nothing can hide in them: a folded model
fits exactly, a learned first ω does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bathy.core.transformer import Layer, Transformer, TransformerConfig
from bathy.errors import ModelError, SchemeError, require
from bathy.tasks.huggingface import quiet
from bathy.tasks.special_tokens import BOS, EOS, PAD, SPECIALS, UNK
from bathy.tasks.translation.export.compare import Rows, paired
from bathy.tasks.translation.export.guide import LONGEST
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.text.bpe import until_end
from bathy.tasks.translation.translate import padded

PARTS = {
    "self_attention": ("self_attn", "self_attn_layer_norm"),
    "cross_attention": ("encoder_attn", "encoder_attn_layer_norm"),
    "ffn": ("", "final_layer_norm"),
}
"""Our residuals, and what Marian calls their branch and norm."""


def check(config: TransformerConfig) -> None:
    """Refuse what Marian cannot run faithfully."""
    names = {config.scheme_name(stack) for stack in config.stacks}
    if names != {"post_ln"}:
        raise SchemeError(
            f"Marian runs post_ln and what folds into it, not {_other(names)}; export it --to ctranslate2 or bathy"
        )
    if config.stored_positions:
        raise SchemeError(
            "Marian computes its positions and cannot hold a learned first ω; "
            "export it --to ctranslate2, or train with model.learn_first_omega = false"
        )
    if config.norm != "layer":
        raise ModelError(f"Marian has no norm {config.norm!r}; export it --to bathy, or train with model.norm = 'layer'")
    for setting, value in config.beyond().items():
        raise ModelError(f"Marian does not run model.{setting} = {value!r}; export it --to bathy")


def _other(names: set[str]) -> str:
    return " and ".join(sorted(names - {"post_ln"}))


def build(model: Transformer, decode: Decode) -> Any:
    """The MarianMTModel that computes what `model`, a plain post_ln, computes."""
    transformers = require("transformers", "export")
    check(model.config)
    marian = transformers.MarianMTModel(marian_config(model.config))
    missing, foreign = marian.load_state_dict(weights(model), strict=False)
    assert not foreign and all("embed_positions" in name for name in missing), (missing, foreign)
    marian.generation_config = transformers.GenerationConfig(**generation(decode, min(model.config.max_length, LONGEST)))
    return marian.eval()


def marian_config(config: TransformerConfig) -> Any:
    """Our settings under Marian's names."""
    transformers = require("transformers", "export")
    stacks = {
        f"{stack}_{name}": value
        for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers))
        for name, value in (("layers", layers), ("ffn_dim", config.ffn), ("attention_heads", config.heads))
    }
    return transformers.MarianConfig(
        vocab_size=config.vocab,
        d_model=config.width,
        max_position_embeddings=config.max_length,
        activation_function=config.feed_forward,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        scale_embedding=True,
        share_encoder_decoder_embeddings=config.tie_embeddings,
        tie_word_embeddings=config.tie_embeddings,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        **stacks,
    )


def generation(decode: Decode, longest: int) -> dict[str, Any]:
    """Settings under which Marian searches as bathy does: exact early stopping, and the same special tokens forbidden."""
    beams = {"length_penalty": decode.length_penalty, "early_stopping": "never"} if decode.beam > 1 else {}
    return {
        "num_beams": decode.beam,
        **beams,
        "max_length": longest + 1,  # Marian counts BOS
        "suppress_tokens": [PAD, UNK, BOS],
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }


def weights(model: Transformer) -> dict[str, Tensor]:
    """Our weights under Marian's names."""
    tied = model.config.tie_embeddings
    embeddings: dict[str, Tensor] = {name: part.weight.data for name, part in model.embeddings.items()}  # type: ignore[misc]
    result = {
        "lm_head.weight": embeddings["shared" if tied else "output"],
        "final_logits_bias": torch.zeros(1, model.config.vocab),
        **{f"model.{stack}.embed_tokens.weight": embeddings["shared" if tied else stack] for stack in model.config.stacks},
    }
    if tied:
        result["model.shared.weight"] = embeddings["shared"]
    for stack in model.config.stacks:
        layers: Any = model.get_submodule(stack).layers
        for i, layer in enumerate(layers):
            result |= {f"model.{stack}.layers.{i}.{name}": value for name, value in layer_weights(layer).items()}
    return result


def layer_weights(layer: Layer) -> dict[str, Tensor]:
    """One layer's weights under Marian's names; q, k and v apart."""
    result: dict[str, Tensor] = {}
    residual: Any
    for kind, residual in layer.named_children():
        branch, norm = PARTS[kind]
        for matrix in residual.f.matrices():
            name = f"{branch}.{matrix.role}_proj" if branch else matrix.role
            result[f"{name}.weight"] = matrix.weight.detach()
            result[f"{name}.bias"] = matrix.bias.detach()
        result |= {f"{norm}.{name}": value.detach() for name, value in residual.post.named_parameters()}
    return result


def write(model: Transformer, codec: Codec, decode: Decode, folder: Path, kind: str) -> None:
    """Write weights, config, generation settings, and the tokenizer under the names that Hugging Face looks for."""
    transformers = require("transformers", "export")
    with quiet(transformers):
        build(model, decode).save_pretrained(folder)
        specials = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), SPECIALS, strict=True))
        subwords = codec.bpe("source", "a Marian export").tokenizer
        limit = model.config.max_length
        transformers.PreTrainedTokenizerFast(tokenizer_object=subwords, model_max_length=limit, **specials).save_pretrained(
            folder
        )


class Marian:
    """The folder as Hugging Face loads it, from disk alone."""

    measure = "logits"

    def __init__(self, folder: Path, codec: Codec, kind: str) -> None:
        transformers = require("transformers", "export")
        with quiet(transformers):
            self.model = transformers.MarianMTModel.from_pretrained(folder, local_files_only=True).eval()

    def translate(self, source: Rows, decode: Decode) -> list[list[int]]:
        tokens = padded(source)
        settings = generation(decode, int(decode.limits(tokens, self.model.config.max_position_embeddings).max()))
        found = self.model.generate(input_ids=tokens, attention_mask=tokens.ne(PAD).long(), **settings)
        return [list(until_end(row)) for row in found.tolist()]

    def distance(self, model: Transformer, source: Rows, target: Rows) -> float:
        return max(self._distance(model, padded(rows), padded(wanted)) for rows, wanted in paired(source, target))

    def _distance(self, model: Transformer, source: Tensor, target: Tensor) -> float:
        theirs = self.model(input_ids=source, attention_mask=source.ne(PAD).long(), decoder_input_ids=target).logits
        return float((model(source, target) - theirs)[target.ne(PAD)].abs().max())
