"""A folder for CTranslate2, written through its low-level model specification.

It runs Post-LN (Admin folded) and Pre-LN stacks, each stack for itself, LayerNorm or RMSNorm, and any position table. It
would also accept a model without norms and then be silently wrong, so those schemes are refused here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bathy.core.attention import SelfAttention
from bathy.core.residual import Residual
from bathy.core.transformer import Layer, Transformer, TransformerConfig
from bathy.errors import ModelError, SchemeError, require
from bathy.files import write_json
from bathy.tasks.translation.export.compare import Rows
from bathy.tasks.translation.search import Decode, rate
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.translate import SETTINGS, padded

EPSILON = 1e-5
MANY = 1 << 20


def check(config: TransformerConfig) -> None:
    """Refuse what CTranslate2 cannot run faithfully."""
    for stack in config.stacks:
        if (name := config.scheme_name(stack)) not in ("post_ln", "pre_ln"):
            raise SchemeError(
                f"CTranslate2 runs post_ln, what folds into it, and pre_ln; not {name} in the {stack}; export it --to bathy"
            )
    if config.norm not in ("layer", "rms"):
        raise ModelError(f"CTranslate2 has no norm {config.norm!r}; export it --to bathy, or train with model.norm = 'layer'")
    for setting, value in config.beyond().items():
        raise ModelError(f"CTranslate2 does not run model.{setting} = {value!r}; export it --to bathy")


def build(model: Transformer, names: list[str], quantisation: str | None = None, target: list[str] | None = None) -> Any:
    """The specification that computes what `model` computes.

    `names` are the vocabulary's tokens in the order of their ids; the `target` side may spell them differently.
    """
    specs = require("ctranslate2.specs", "export")
    config = model.config
    check(config)
    activation = specs.Activation.RELU if config.feed_forward == "relu" else specs.Activation.GELU
    shared = {"activation": activation, "rms_norm": config.norm == "rms"}
    encoder, decoder = (
        make(layers, config.heads, pre_norm=config.scheme_name(stack) == "pre_ln", **shared)
        for make, stack, layers in (
            (specs.transformer_spec.TransformerEncoderSpec, "encoder", config.encoder_layers),
            (specs.transformer_spec.TransformerDecoderSpec, "decoder", config.decoder_layers),
        )
    )
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = EPSILON
    _stack(encoder, encoder.embeddings[0], model, "encoder")
    _stack(decoder, decoder.embeddings, model, "decoder")
    decoder.projection.weight = _copy(model.output_weight)
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(target or names)
    spec.validate()
    spec.optimize(quantization=quantisation)
    return spec


def write(model: Transformer, codec: Codec, decode: Decode, folder: Path, kind: str) -> None:
    """Write weights, config and vocabulary, and the settings that CTranslate2 has no place for."""
    build(model, codec.subwords["source"].names, None if kind == "float32" else kind).save(str(folder))
    write_json(folder / SETTINGS, {"decode": decode.model_dump(), "max_length": model.config.max_length})


class CTranslate2:
    """The folder as CTranslate2 loads it."""

    measure = "log p"

    def __init__(self, folder: Path, codec: Codec, kind: str) -> None:
        self.source_names = self.target_names = codec.subwords["source"].names
        self.ids = codec.subwords["source"].vocab
        library = require("ctranslate2", "export")
        self.translator = library.Translator(str(folder), compute_type=kind, intra_threads=torch.get_num_threads())

    def translate(self, source: Rows, decode: Decode) -> list[list[int]]:
        limit = int(decode.limits(padded(source), MANY).max())
        found = self.translator.translate_batch(
            self.named(source),
            beam_size=decode.beam,
            length_penalty=decode.length_penalty,
            patience=limit if decode.beam > 1 else 1,  # it stops at beam · patience translations: here never too early
            min_decoding_length=decode.min_length - 1,
            max_decoding_length=limit,
        )
        return [[self.ids[name] for name in one.hypotheses[0]] for one in found]

    def distance(self, model: Transformer, source: Rows, target: Rows) -> float:
        wanted = [[self.target_names[i] for i in row[:-1]] for row in target]
        theirs = self.translator.score_batch(self.named(source), wanted)
        totals = torch.tensor([sum(one.log_probs) for one in theirs])
        summed = Decode(length_penalty=0)
        ours = [rate([model], padded([row]), padded([given]), summed) for row, given in zip(source, target, strict=True)]
        return float((torch.cat(ours) - totals).abs().max())

    def named(self, source: Rows) -> list[list[str]]:
        """Source rows as the tokens that CTranslate2 takes."""
        return [[self.source_names[i] for i in row] for row in source]


def _stack(spec: Any, embeddings: Any, model: Transformer, name: str) -> None:
    embedding = model.embeddings["shared" if model.config.tie_embeddings else name]
    embeddings.weight = _copy(embedding.weight)  # type: ignore[arg-type]
    spec.scale_embeddings = True
    spec.position_encodings.encodings = _copy(getattr(model, f"{name}_positions"))
    stack = model.get_submodule(name)
    for part, layer in zip(spec.layer, stack.layers, strict=True):  # type: ignore[arg-type]
        _layer(part, layer)
    if spec.pre_norm:
        _norm(spec.layer_norm, stack.final)  # type: ignore[arg-type]


def _layer(spec: Any, layer: Layer) -> None:
    _attention(spec.self_attention, layer.self_attention)
    if hasattr(layer, "cross_attention"):
        _attention(spec.attention, layer.cross_attention)
    ffn: Any = layer.ffn.f
    _norm(spec.ffn.layer_norm, _norm_of(layer.ffn))
    _linear(spec.ffn.linear_0, ffn.fc1)
    _linear(spec.ffn.linear_1, ffn.fc2)


def _attention(spec: Any, residual: Residual) -> None:
    f: Any = residual.f
    _norm(spec.layer_norm, _norm_of(residual))
    for part, linear in zip(spec.linear, [f.qkv, f.out] if isinstance(f, SelfAttention) else [f.q, f.kv, f.out], strict=True):
        _linear(part, linear)


def _norm_of(residual: Residual) -> nn.Module:
    return residual.post if isinstance(residual.pre, nn.Identity) else residual.pre


def _norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma = _copy(norm.weight)  # type: ignore[arg-type]
    if (bias := getattr(norm, "bias", None)) is not None:
        spec.beta = _copy(bias)


def _linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight, spec.bias = _copy(linear.weight), _copy(linear.bias)


def _copy(weight: Tensor) -> Any:
    """A copy, because a quantising conversion changes the arrays it is given."""
    return weight.detach().float().numpy().copy()
