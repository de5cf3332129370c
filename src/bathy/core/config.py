"""What a model is made of: settings, and the paper's models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from bathy.core.feed_forward import find_feed_forward
from bathy.core.initial import find_initialisation
from bathy.core.norms import find_norm
from bathy.core.positions import find_positions
from bathy.core.schemes import Scheme, find_scheme
from bathy.settings import Settings

Rate = Field(default=0.0, ge=0.0, lt=1.0)
TABLES: dict[str, Callable[[str], object]] = {
    "encoder_scheme": find_scheme,
    "decoder_scheme": find_scheme,
    "norm": find_norm,
    "feed_forward": find_feed_forward,
    "positions": find_positions,
    "init": find_initialisation,
}
"""Settings that name a row of a table, and what finds it."""
BLOCKS = ("kv_heads", "positions", "qk_norm", "biases", "embedding_scale", "embedding_norm", "head", "logit_cap")
"""Settings that change what the model computes and that version 0.1 did not have."""


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
    kv_heads: NonNegativeInt = 0
    """Heads of keys and values, each shared by as many heads of queries: grouped-query attention; 0: as many as heads."""
    context: NonNegativeInt = 0
    """Tokens of a training sequence in language modelling; 0: max_length."""
    encoder_scheme: str = "admin"
    """Scheme of the encoder's residuals: a row of bathy.SCHEMES."""
    decoder_scheme: str = "admin"
    """Scheme of the decoder's residuals: a row of bathy.SCHEMES."""
    norm: str = "layer"
    """Norm wherever the scheme has one: layer, rms or scale."""
    feed_forward: str = "relu"
    """The feed-forward branch: relu, gelu, swiglu or geglu; 0.1's `activation` is still read."""
    positions: str = "sinusoidal"
    """How positions enter: sinusoidal, learned or rotary."""
    rotary_base: PositiveFloat = 10000.0
    """Base of the angles of rotary positions."""
    qk_norm: bool = False
    """RMSNorm on q and k of every head."""
    biases: bool = True
    """Biases in linear layers and LayerNorms."""
    embedding_scale: Literal["sqrt_width", "one"] = "sqrt_width"
    """Factor on embeddings as they enter the stream."""
    embedding_norm: bool = False
    """A norm on embeddings plus positions, as BERT has it."""
    init: str = "xavier"
    """First values: xavier, or normal (0.02, last matrix of every branch divided by the root of the stack's sub-layers)."""
    head: Literal["linear", "bert"] = "linear"
    """What stands before the output matrix: nothing, or BERT's dense layer, GELU and norm, with a bias for each token."""
    logit_cap: NonNegativeFloat = 0.0
    """Soft limit c of the logits: c · tanh(z / c); 0: none."""
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
    base_width: PositiveInt = 256
    """Width of the small model whose learning rate scheme completep carries over."""
    base_layers: PositiveInt = 2
    """Layers of the small model whose learning rate scheme completep carries over."""
    max_length: PositiveInt = 1024
    """Longest sequence, in tokens."""

    @model_validator(mode="before")
    @classmethod
    def old_names(cls, values: Any) -> Any:
        """Read version 0.1's `activation` as `feed_forward`."""
        if isinstance(values, dict) and "activation" in values:
            rest = {key: value for key, value in values.items() if key != "activation"}
            return {"feed_forward": values["activation"]} | rest
        return values

    @field_validator(*TABLES)
    @classmethod
    def row_exists(cls, name: str, info: ValidationInfo) -> str:
        """Refuse a name that its table does not have, naming the nearest."""
        TABLES[info.field_name or ""](name)
        return name

    @model_validator(mode="after")
    def heads_fit(self) -> Self:
        """Refuse heads that do not divide the width or each other, and widths that rotary positions cannot halve."""
        if self.width % self.heads:
            raise ValueError(f"model.heads is {self.heads}; it must divide model.width ({self.width})")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"model.kv_heads is {self.kv_heads}; it must divide model.heads ({self.heads})")
        if self.width % 2:
            raise ValueError(f"model.width is {self.width}; it must be even, for sine and cosine halves")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"model.heads is {self.heads}; rotary positions need an even width of heads, not {self.head_width}"
            )
        return self

    @model_validator(mode="after")
    def parts_fit(self) -> Self:
        """Refuse a model without layers, a context beyond the longest sequence, and blocks that a scheme does not go with."""
        if not self.encoder_layers + self.decoder_layers:
            raise ValueError("model.encoder_layers and model.decoder_layers are both 0; give at least one a layer")
        if self.context > self.max_length:
            raise ValueError(f"model.context is {self.context}; it can be at most model.max_length ({self.max_length})")
        for stack in self.stacks:
            for reason in (refuse(self) for refuse in self.scheme(stack).refuses):
                if reason:
                    raise ValueError(f"model.{stack}_scheme is {self.scheme_name(stack)!r}: {reason}")
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

    @property
    def head_width(self) -> int:
        """Dimensions of a head."""
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Dimensions of all heads of keys."""
        return self.head_width * (self.kv_heads or self.heads)

    @property
    def longest(self) -> int:
        """Positions that the model knows: learned ones only as far as it was trained."""
        return self.context or self.max_length if self.positions == "learned" else self.max_length

    def beyond(self, *known: str) -> dict[str, object]:
        """Blocks that version 0.1 did not have, but for the `known` ones: what an export refuses by name."""
        gated = find_feed_forward(self.feed_forward).gated
        changed = [name for name in BLOCKS if getattr(self, name) != type(self).model_fields[name].default]
        named = [*(["feed_forward"] if gated else []), *changed]
        return {name: getattr(self, name) for name in named if name not in known}


class TransformerConfig(Architecture, section="model"):
    """A whole model: architecture and vocabulary."""

    vocab: PositiveInt
    """Number of token ids."""
    pad: int = Field(default=0, ge=-1)
    """Id of the padding token; −1: there is none."""
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
