"""The Transformer: encoder–decoder, encoder-only and decoder-only, of any depth, in any scheme, from the same parts."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bathy.attention import Cache, EncoderAttention, KeyValues, SelfAttention, fused_xavier_
from bathy.dropout import Dropout
from bathy.errors import ConfigError
from bathy.norms import find_norm
from bathy.residual import Branch, Matrix, Place, Residual
from bathy.schemes import Scheme, find_scheme
from bathy.settings import Settings

Rate = Field(default=0.0, ge=0.0, lt=1.0)
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


class Architecture(Settings, section="model"):
    """What a model is made of, all but its vocabulary."""

    encoder_layers: NonNegativeInt = 6
    """Layers of the encoder; 0 gives a decoder-only model."""
    decoder_layers: NonNegativeInt = 6
    """Layers of the decoder; 0 gives an encoder-only model."""
    width: PositiveInt = 512
    """Dimensions of the stream."""
    ffn: PositiveInt = 2048
    """Dimensions inside the feed-forward branch."""
    heads: PositiveInt = 8
    """Attention heads; they divide the width."""
    encoder_scheme: str = "admin"
    """Scheme of the encoder's residuals: a row of bathy.SCHEMES."""
    decoder_scheme: str = "admin"
    """Scheme of the decoder's residuals: a row of bathy.SCHEMES."""
    norm: str = "layer"
    """Norm wherever the scheme has one: layer, rms or scale."""
    activation: Literal["relu", "gelu"] = "relu"
    """Non-linearity of the feed-forward branch."""
    dropout: float = Rate
    """Dropout on embeddings and on every branch's output."""
    attention_dropout: float = Rate
    """Dropout on attention probabilities."""
    activation_dropout: float = Rate
    """Dropout after the activation."""
    learn_first_omega: bool = False
    """Give Admin's first sub-layer a learned ω too; folding then unties the embeddings."""
    tie_embeddings: bool = True
    """Share one matrix among source, target and output."""
    max_length: PositiveInt = 1024
    """Longest sequence, in tokens."""

    @field_validator("encoder_scheme", "decoder_scheme")
    @classmethod
    def scheme_exists(cls, name: str) -> str:
        """Refuse an unknown scheme, naming the nearest."""
        find_scheme(name)
        return name

    @field_validator("norm")
    @classmethod
    def norm_exists(cls, name: str) -> str:
        """Refuse an unknown norm, naming the nearest."""
        find_norm(name)
        return name

    @model_validator(mode="after")
    def parts_fit(self) -> Self:
        """Refuse heads that do not divide the width, an odd width, and a model without layers."""
        if self.width % self.heads:
            raise ValueError(f"model.heads is {self.heads}; it must divide model.width ({self.width})")
        if self.width % 2:
            raise ValueError(f"model.width is {self.width}; it must be even, for sine and cosine halves")
        if not self.encoder_layers + self.decoder_layers:
            raise ValueError("model.encoder_layers and model.decoder_layers are both 0; give at least one a layer")
        return self

    def scheme(self, stack: str) -> Scheme:
        """The scheme of a stack."""
        return find_scheme(self.scheme_name(stack))

    def scheme_name(self, stack: str) -> str:
        """The name of a stack's scheme."""
        return self.encoder_scheme if stack == "encoder" else self.decoder_scheme

    @property
    def stacks(self) -> list[str]:
        """The stacks this model has."""
        depths = {"encoder": self.encoder_layers, "decoder": self.decoder_layers}
        return [name for name, layers in depths.items() if layers]


class TransformerConfig(Architecture, section="model"):
    """A whole model: architecture and vocabulary."""

    vocab: PositiveInt
    """Number of token ids."""
    pad: NonNegativeInt = 0
    """Id of the padding token."""
    stored_positions: bool = False
    """Keep a position table for each stack in the weights: what folding a learned first ω needs."""


BASE = Architecture(dropout=0.1, attention_dropout=0.1, activation_dropout=0.1)
PRESETS: dict[str, Architecture] = {
    "iwslt14_deen": BASE.model_copy(update={"ffn": 1024, "heads": 4, "dropout": 0.3}),
    "wmt14_ende_6l": BASE,
    "wmt14_ende_12l": BASE.model_copy(update={"encoder_layers": 12, "decoder_layers": 12}),
    "wmt14_ende_18l": BASE.model_copy(update={"encoder_layers": 18, "decoder_layers": 18}),
    "wmt14_ende_60l_12l": BASE.model_copy(update={"encoder_layers": 60, "decoder_layers": 12}),
    "wmt14_enfr_6l": BASE,
    "wmt14_enfr_60l_12l": BASE.model_copy(update={"encoder_layers": 60, "decoder_layers": 12}),
}
"""The paper's models."""


class FeedForward(Branch):
    """dropout(W₂ · dropout(activation(W₁ · x)))."""

    kind = "ffn"

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(config.width, config.ffn), nn.Linear(config.ffn, config.width)
        self.activation: nn.Module = ACTIVATIONS[config.activation]()
        self.activation_dropout, self.dropout = Dropout(config.activation_dropout), Dropout(config.dropout)
        self.inner: nn.Module = nn.Identity()
        self.inner_width = config.ffn
        fused_xavier_(self.fc1)
        fused_xavier_(self.fc2)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.fc2(self.inner(self.activation_dropout(self.activation(self.fc1(x))))))

    def matrices(self) -> list[Matrix]:
        """fc1 reads the stream."""
        return [Matrix("fc1", self.fc1, reads=True), Matrix("fc2", self.fc2)]


class Layer(nn.Module):
    """Self-attention, encoder-attention in a decoder that has an encoder, and feed-forward: each a residual."""

    self_attention: Residual
    encoder_attention: Residual
    ffn: Residual

    def __init__(self, config: Architecture, stack: str, number: int) -> None:
        super().__init__()
        paired = len(config.stacks) == 2
        attention = (config.width, config.heads, config.dropout, config.attention_dropout)
        branches: list[Branch] = [SelfAttention(*attention, causal=stack == "decoder")]
        if stack == "decoder" and paired:
            branches.append(EncoderAttention(*attention))
        branches.append(FeedForward(config))
        build = config.scheme(stack).build
        shared: dict[str, nn.Module] = {}
        for offset, f in enumerate(branches):
            index = (number - 1) * len(branches) + offset + 1
            self.add_module(f.kind, build(f, place(config, stack, number, index, len(branches), shared)))

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        own: KeyValues | None = None,
        kept: KeyValues | None = None,
    ) -> Tensor:
        """The layer's output; `own` and `kept` are the caches of self-attention and of encoder-attention."""
        x = self.self_attention(x, mask, own)
        if memory is not None:
            x = self.encoder_attention(x, memory, memory_mask, kept)
        return self.ffn(x)


def place(
    config: Architecture, stack: str, layer: int = 1, index: int = 1, per_layer: int = 2, shared: dict[str, Any] | None = None
) -> Place:
    """Where a residual stands in the model of this config."""
    layers = config.encoder_layers if stack == "encoder" else config.decoder_layers
    return Place(
        scheme=config.scheme_name(stack),
        stack=stack,
        layer=layer,
        index=index,
        sites=layers * per_layer,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        width=config.width,
        make_norm=find_norm(config.norm),
        learn_first=config.learn_first_omega,
        shared={} if shared is None else shared,
    )


class Stack(nn.Module):
    """The layers of an encoder or a decoder, with what its scheme puts before and after them."""

    def __init__(self, config: Architecture, name: str) -> None:
        super().__init__()
        scheme, here = config.scheme(name), place(config, name)
        self.first, self.final = scheme.first(here), scheme.final(here)
        self.layers = nn.ModuleList(Layer(config, name, number + 1) for number in range(here.layers))
        self.checkpointing = False

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The stack's output. With `checkpointing`, activations inside layers are computed again in the backward pass."""
        x = self.first(x)
        for i, layer in enumerate(self.layers):
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, mask, memory, memory_mask, use_reentrant=False)
            elif cache is not None:
                x = layer(x, mask, memory, memory_mask, cache.own[i], cache.memory[i])
            else:
                x = layer(x, mask, memory, memory_mask)
        return self.final(x)


def sinusoids(length: int, width: int) -> Tensor:
    """Positions as sine and cosine halves: sin(p / 10000^(2i/width)) for i < width/2, then the cosines."""
    rate = 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rate
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


class Transformer(nn.Module):
    """A Transformer as its config says: `model(source, target_in)` gives logits, a single stack's `model(tokens)` too.

    Padding stands on the right. Embeddings are normal with deviation width^−½ and enter the stream times √width, plus
    sinusoidal positions, after dropout; they are tied with the output unless the config says otherwise.
    """

    encoder: Stack
    decoder: Stack

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        names = ["shared"] if config.tie_embeddings else [*config.stacks, "output"]
        self.embeddings = nn.ModuleDict({name: self._embedding() for name in names})
        self.dropout = Dropout(config.dropout)
        for name in config.stacks:
            self.add_module(name, Stack(config, name))
            table = sinusoids(config.max_length, config.width)
            self.register_buffer(f"{name}_positions", table, persistent=config.stored_positions)

    def _embedding(self) -> nn.Embedding:
        config = self.config
        embedding = nn.Embedding(config.vocab, config.width, padding_idx=config.pad)
        gain = min(config.scheme(name).embedding(place(config, name)) for name in config.stacks)
        with torch.no_grad():
            nn.init.normal_(embedding.weight, std=gain * config.width**-0.5)
            embedding.weight[config.pad] = 0
        return embedding

    def forward(self, source: Tensor, target_in: Tensor | None = None) -> Tensor:
        """Logits at every position of the target, or of the only sequence."""
        return self.logits(self.features(source, target_in))

    def features(self, source: Tensor, target_in: Tensor | None = None) -> Tensor:
        """What the output matrix reads: forward without the last product."""
        if len(self.config.stacks) == 1:
            if target_in is not None:
                raise ConfigError("this model has one stack; call it with one sequence: model(tokens)")
            return self.encode(source)[0] if "encoder" in self.config.stacks else self.decode(source)
        if target_in is None:
            raise ConfigError("this model has an encoder and a decoder; call it as model(source, target_in)")
        return self.decode(target_in, *self.encode(source))

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's output, and where it is real (b 1 1 k)."""
        mask = source.ne(self.config.pad)[:, None, None, :]
        return self.encoder(self.embed(source, "encoder"), mask), mask

    def decode(
        self,
        target_in: Tensor,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The decoder's output for `target_in`, which follows what is in the cache."""
        if cache is None:
            return self.decoder(self.embed(target_in, "decoder"), None, memory, memory_mask)
        x = self.embed(target_in, "decoder", cache.length, 1 if cache.beams > 1 else None)
        return self.decoder(x, cache.admit(target_in), memory, memory_mask, cache)

    def embed(self, tokens: Tensor, stack: str, start: int = 0, positions: int | None = None) -> Tensor:
        """x_0: scaled embeddings plus `positions` from `start` on (1: one for all columns), after dropout."""
        config, stop = self.config, start + (positions or tokens.shape[1])
        if stop > config.max_length:
            raise ConfigError(f"a sequence has {stop} tokens; model.max_length is {config.max_length}: raise it or cut")
        embedding = self.embeddings["shared" if config.tie_embeddings else stack]
        table = getattr(self, f"{stack}_positions")[start:stop]
        return self.dropout(torch.add(table, embedding(tokens), alpha=math.sqrt(config.width)))

    def logits(self, features: Tensor) -> Tensor:
        """features · Eᵀ, E the tied or the output embedding."""
        return F.linear(features, self.output_weight)

    @property
    def output_weight(self) -> Tensor:
        """The matrix that turns features into logits, vocab × width."""
        embedding: nn.Embedding = self.embeddings["shared" if self.config.tie_embeddings else "output"]  # type: ignore[assignment]
        return embedding.weight

    def cache(self, beams: int = 1) -> Cache:
        """An empty cache for step-wise decoding; with `beams`, of that many hypotheses a sentence."""
        return Cache(self.config.decoder_layers, beams)

    def real_tokens(self, source: Tensor, target_in: Tensor | None = None) -> dict[str, Tensor]:
        """For each stack, where its tokens are real (b t)."""
        sequences = [source] if target_in is None else [source, target_in]
        return {name: tokens.ne(self.config.pad) for name, tokens in zip(self.config.stacks, sequences, strict=True)}

    def checkpoint_(self, on: bool = True) -> Self:
        """Switch activation checkpointing: less memory, one more forward pass a step."""
        for module in self.modules():
            if isinstance(module, Stack):
                module.checkpointing = on
        return self
