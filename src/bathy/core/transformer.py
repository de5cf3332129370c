"""The Transformer: encoder–decoder, encoder-only and decoder-only, of any depth, in any scheme, from the same parts."""

# b batch, t or q token, k key

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bathy.core.cache import Cache
from bathy.core.config import PRESETS, Architecture, TransformerConfig
from bathy.core.head import BertHead
from bathy.core.initial import find_initialisation
from bathy.core.positions import Rotary, Where, positions_in_documents, sinusoids
from bathy.core.residual import current_name
from bathy.core.stack import Layer, Stack, place
from bathy.errors import ConfigError
from bathy.kernels.cross_entropy import cross_entropy
from bathy.kernels.dropout import Dropout

__all__ = ["PRESETS", "Architecture", "Layer", "Stack", "Transformer", "TransformerConfig"]

Value = TypeVar("Value")


class Transformer(nn.Module):
    """A Transformer as its config says: `model(source, target_in)` gives logits, a single stack's `model(tokens)` too.

    Padding stands on the right. By default embeddings are normal with deviation width^−½ and enter the stream times √width,
    plus sinusoidal positions, after dropout; they are tied with the output unless the config says otherwise.
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
            self._add_positions(name)
        normed = config.stacks if config.embedding_norm else []
        self.embedding_norms = nn.ModuleDict({name: place(config, name).norm() for name in normed})
        rotary = config.positions == "rotary"
        self.rotary = Rotary(config.max_length, config.head_width, config.rotary_base) if rotary else None
        self.head = BertHead(config) if config.head == "bert" else None

    def _embedding(self) -> nn.Embedding:
        config = self.config
        embedding = nn.Embedding(config.vocab, config.width, padding_idx=config.pad if config.pad >= 0 else None)
        gain = min(config.scheme(name).embedding(place(config, name)) for name in config.stacks)
        with torch.no_grad():
            nn.init.normal_(embedding.weight, std=gain * find_initialisation(config.init).embedding(config.width))
            if config.pad >= 0:
                embedding.weight[config.pad] = 0
        return embedding

    def _add_positions(self, stack: str) -> None:
        """The table that is added to a stack's embeddings: sinusoids, or learned values."""
        config = self.config
        if config.positions == "sinusoidal":
            table = sinusoids(config.max_length, config.width)
            self.register_buffer(f"{stack}_positions", table, persistent=config.stored_positions)
        elif config.positions == "learned":
            table = torch.empty(config.longest, config.width)
            nn.init.normal_(table, std=find_initialisation(config.init).embedding(config.width))
            self.register_parameter(f"{stack}_positions", nn.Parameter(table))

    def forward(self, source: Tensor, target_in: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """Logits at every position of the target, or of the only sequence.

        `documents` (b t), for a single stack, numbers the document of each token, differently within a row: tokens then see
        their own document only, and positions start again with each.
        """
        return self.logits(self.features(source, target_in, documents))

    def features(self, source: Tensor, target_in: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """The last stack's output: forward without `logits`."""
        if len(self.config.stacks) == 1:
            if target_in is not None:
                raise ConfigError("this model has one stack; call it with one sequence: model(tokens)")
            if "encoder" in self.config.stacks:
                return self.encode(source, documents)[0]
            return self.decode(source, documents=documents)
        if target_in is None or documents is not None:
            raise ConfigError("this model has an encoder and a decoder; call it as model(source, target_in)")
        return self.decode(target_in, *self.encode(source))

    def encode(self, source: Tensor, documents: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The encoder's output, and which of it may be seen (b 1 1 k, or b 1 q k with documents)."""
        mask = source.ne(self.config.pad)[:, None, None, :]
        if documents is not None:  # a token of padding sees itself, so that its softmax is defined
            itself = torch.eye(source.shape[1], dtype=torch.bool, device=source.device)
            mask = mask & _same(documents) | itself
        where = self._where(source, documents=documents)
        return self.encoder(self.embed(source, "encoder", where), mask, self._turn(where)), mask

    def decode(
        self,
        target_in: Tensor,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """The decoder's output for `target_in`, which follows what is in the cache."""
        where = self._where(target_in, cache, documents)
        x, turn = self.embed(target_in, "decoder", where), self._turn(where)
        if cache is not None:
            return self.decoder(x, cache.admit(target_in), turn, memory, memory_mask, cache)
        mask = None if documents is None else _same(documents).tril()
        return self.decoder(x, mask, turn, memory, memory_mask)

    def embed(self, tokens: Tensor, stack: str, where: Where | None = None) -> Tensor:
        """x_0: scaled embeddings plus positions, through the norm if there is one, after dropout."""
        config = self.config
        embedding = self.embeddings["shared" if config.tie_embeddings else stack]
        factor = math.sqrt(config.width) if config.embedding_scale == "sqrt_width" else 1.0
        if config.positions == "rotary":
            x = embedding(tokens) * factor
        else:
            table = getattr(self, f"{stack}_positions")[self._where(tokens) if where is None else where]
            x = torch.add(table, embedding(tokens), alpha=factor)
        return self.dropout(self.embedding_norms[stack](x) if config.embedding_norm else x)

    def _where(self, tokens: Tensor, cache: Cache | None = None, documents: Tensor | None = None) -> Where:
        """Positions of the tokens: behind those in the cache (one for all hypotheses), or within their documents."""
        start = 0 if cache is None else cache.length
        stop = start + (1 if cache is not None and cache.beams > 1 else tokens.shape[1])
        where = slice(start, stop) if documents is None else positions_in_documents(documents)
        longest = self.config.longest
        if isinstance(where, Tensor) and stop > longest:
            stop = int(where.max()) + 1
        if stop > longest:
            setting = "context" if longest < self.config.max_length else "max_length"
            raise ConfigError(f"a sequence has {stop} tokens; model.{setting} is {longest}: raise it or cut")
        return where

    def _turn(self, where: Where) -> tuple[Tensor, Tensor] | None:
        return None if self.rotary is None else self.rotary(where)

    def logits(self, features: Tensor) -> Tensor:
        """head(features) · Eᵀ, E the tied or the output embedding, through c · tanh(z / c) if the config has a limit c."""
        z = F.linear(self._head(features), self.output_weight, self.output_bias)
        cap = self.config.logit_cap
        return cap * torch.tanh(z / cap) if cap else z

    def cross_entropy(self, features: Tensor, target: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """(label-smoothed loss, NLL) of the logits of features (n × D) against targets (n), each summed; no logits are kept."""
        bias, cap = self.output_bias, self.config.logit_cap
        return cross_entropy(self._head(features), self.output_weight, target, smoothing, bias=bias, cap=cap)

    def _head(self, features: Tensor) -> Tensor:
        return features if self.head is None else self.head(features)

    @property
    def output_weight(self) -> Tensor:
        """The matrix that turns features into logits, vocab × width."""
        embedding: nn.Embedding = self.embeddings["shared" if self.config.tie_embeddings else "output"]  # type: ignore[assignment]
        return embedding.weight

    @property
    def output_bias(self) -> Tensor | None:
        """A bias for each token's logit, where the head has one."""
        return None if self.head is None else self.head.bias

    def cache(self, beams: int = 1) -> Cache:
        """An empty cache for step-wise decoding; with `beams`, of that many hypotheses a sentence."""
        return Cache(self.config.decoder_layers, beams)

    def real_tokens(
        self, source: Tensor, target_in: Tensor | None = None, documents: Tensor | None = None
    ) -> dict[str, Tensor]:
        """For each stack, where its tokens are real (b t)."""
        sequences = [source] if target_in is None else [source, target_in]
        return {name: tokens.ne(self.config.pad) for name, tokens in zip(self.config.stacks, sequences, strict=True)}

    @staticmethod
    def rename_old_keys(named: Mapping[str, Value]) -> dict[str, Value]:
        """What was saved by parameter name, under the names of today: version 0.1's cross-attention had another."""
        return {current_name(name): value for name, value in named.items()}

    def checkpoint_(self, on: bool = True) -> Self:
        """Switch activation checkpointing: less memory, one more forward pass a step."""
        for module in self.modules():
            if isinstance(module, Stack):
                module.checkpointing = on
        return self

    def plain_form(self, first: Mapping[str, Tensor]) -> Transformer:
        """A post_ln model of these weights, from which ω has been folded away; a pre_ln stack stays what it is.

        `first` has the learned ω_1 of each stack, which goes into the norm on the embeddings, or else into untied embeddings
        and stored positions.
        """
        untied = bool(first) and not self.config.embedding_norm
        schemes = {f"{stack}_scheme": "post_ln" for stack in self.config.stacks if self.config.scheme(stack).folds}
        storage = {"tie_embeddings": False, "stored_positions": self.config.positions == "sinusoidal"} if untied else {}
        config = self.config.model_copy(update=schemes | storage | {"learn_first_omega": False})
        result = Transformer(config).to(self.output_weight)
        weights = self.state_dict() | (self._inputs_times(first) if untied else {})
        result.load_state_dict({name: weights[name] for name in result.state_dict()})
        for stack, norm in result.embedding_norms.items():
            norm.scale_(first.get(stack, 1.0))  # type: ignore[operator]
        return result

    def _inputs_times(self, first: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Untied embeddings and position tables with each stack's ω_1 in them."""
        weights = {"embeddings.output.weight": self.output_weight.detach()}
        for stack in self.config.stacks:
            omega = first.get(stack, torch.ones_like(self.output_weight[0]))
            embedding = self.embeddings["shared" if self.config.tie_embeddings else stack]
            weights[f"embeddings.{stack}.weight"] = embedding.weight.detach() * omega  # type: ignore[operator]
            if self.config.positions != "rotary":  # which turn q and k and are not in the stream
                weights[f"{stack}_positions"] = getattr(self, f"{stack}_positions").detach() * omega
        return weights


def _same(documents: Tensor) -> Tensor:
    """Which keys belong to a query's document (b 1 q k)."""
    return (documents[:, :, None] == documents[:, None, :])[:, None]
