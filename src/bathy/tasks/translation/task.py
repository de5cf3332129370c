"""Translation as the engine sees it: pairs of sentences, cross-entropy over target tokens, and whether the source is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from bathy.core.cost import TRAINING, Operations
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import ConfigError, require
from bathy.tasks import entropy
from bathy.tasks.entropy import hardly_uses
from bathy.tasks.models import advice_on_depth
from bathy.tasks.special_tokens import PAD
from bathy.tasks.translation.batches import Batch, Batches, open_splits, ordered
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.data import Split
from bathy.tasks.translation.search import Decode, search
from bathy.tasks.translation.text.codec import Codec
from bathy.train.task import Readings, Sketch, Task

SENTENCES = 64
"""Sentences translated at a time."""
LENGTH = 32
"""Tokens per sentence that a plan counts attention and activations with."""
IGNORED = 0.1
"""Share of the improvement over guessing below which the source gap counts as none; healthy runs have 0.2 and more."""


def make(config: Config) -> Translation:
    """The task of a config."""
    return Translation(config)


class Translation(Task):
    """Trains an encoder–decoder on the data folders of a config."""

    labels: Mapping[str, tuple[str, str]] = {"source_gap": ("source gap", ".3f"), "bleu": ("BLEU", ".1f")}

    def __init__(self, config: Config) -> None:
        if len(config.model.stacks) < 2:
            raise ConfigError("translation needs model.encoder_layers and model.decoder_layers; one of them is 0")
        self.config = config
        self._operations: Operations | None = None

    @cached_property
    def splits(self) -> list[Split]:
        """The training data."""
        return open_splits(self.config.data)

    @cached_property
    def valid(self) -> Split:
        """The validation data: the first folder's."""
        return open_splits(self.config.data, "valid")[0]

    def changed(self, config: Any) -> Translation:
        """The task of another config over the same data."""
        return type(self)(config)

    def check(self) -> None:
        """Open all data, the tokenizer and what a BLEU needs."""
        assert self.splits and self.valid
        Codec.load(self.splits[0].folder)
        if self.config.task.bleu_sentences:
            require("sacrebleu", "translation")

    def build(self) -> Transformer:
        """An encoder–decoder over the data's vocabulary."""
        return self._model(int(self.splits[0].manifest["vocab"]))

    def _model(self, vocab: int) -> Transformer:
        return Transformer(TransformerConfig(vocab=vocab, **self.config.model.model_dump()))

    def batches(self, rank: int, size: int) -> Batches:
        """Batches of sentence pairs within the token budget."""
        data, train = self.config.data, self.config.train
        return Batches(self.splits, train.tokens, train.seed, rank, size, data.weights, data.bpe_dropout)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """(smoothed loss, NLL), summed over real target tokens; no logits are computed at padding."""
        return self._loss(cast(Transformer, model), batch, batch.source)

    def _loss(self, model: Transformer, batch: Batch, source: Tensor) -> tuple[Tensor, Tensor]:
        real = batch.target_out.ne(model.config.pad)
        features = model.features(source, batch.target_in)[real]
        smoothing = self.config.optim.label_smoothing if model.training else 0.0
        return model.cross_entropy(features, batch.target_out[real], smoothing)

    def tokens(self, batch: Batch) -> int:
        """Target tokens, EOS counted."""
        return batch.target_tokens

    def efficiency(self, batch: Batch) -> float:
        """Real tokens among all, both sides counted."""
        return batch.efficiency

    def inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Source and target as the model reads them."""
        return batch.source, batch.target_in

    def held_out(self, rank: int, size: int) -> Iterable[Batch]:
        """The validation pairs, long ones first."""
        return ordered(self.valid, self.config.train.tokens, rank, size)

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        """NLL, and the source gap: NLL with the sources rolled by one sentence within the batch, minus NLL."""
        network, tokens = cast(Transformer, model), float(batch.target_tokens)
        right = float(self._loss(network, batch, batch.source)[1])
        if len(batch.source) == 1:
            return {"loss": (right, tokens), "source_gap": (0.0, 0.0)}
        rolled = float(self._loss(network, batch, batch.source.roll(1, 0))[1])
        return {"loss": (right, tokens), "source_gap": (rolled - right, tokens)}

    def show(self, model: nn.Module) -> dict[str, Any]:
        """BLEU of greedy translations of the first validation sentences, and some of them, as far as the config asks."""
        task = self.config.task
        if not (task.bleu_sentences or task.show_sentences):
            return {}
        count = max(task.bleu_sentences, task.show_sentences)
        hypotheses, references = greedy_translations(cast(Transformer, model), self.valid, count)
        row: dict[str, Any] = {}
        if task.bleu_sentences:
            scored = slice(task.bleu_sentences)
            bleu = require("sacrebleu", "translation").BLEU()
            row["bleu"] = float(bleu.corpus_score(hypotheses[scored], [references[scored]]).score)
        if task.show_sentences:
            pairs = zip(hypotheses, references, strict=True)
            row["translations"] = [f"{made}   (reference: {right})" for made, right in pairs][: task.show_sentences]
        return row

    def chance(self) -> float:
        """The unigram entropy of the target tokens."""
        return self._entropy

    @cached_property
    def _entropy(self) -> float:
        return unigram_entropy(self.splits)

    def failing(self, readings: Readings) -> str:
        """That the decoder has improved on guessing and yet hardly uses the source.

        A translation model uses the source soon after it has begun to learn. One whose encoder is dead learns the target
        language alone: its loss falls, and only the gap tells.
        """
        improvement = self.chance() - readings["loss"]
        return hardly_uses("the decoder hardly uses the source", improvement, readings["source_gap"], IGNORED)

    def advice(self) -> str:
        """A scheme for depth, where a stack is plain Post-LN."""
        return advice_on_depth(self.config.model)

    def flops(self, model: nn.Module, batch: Batch) -> float:
        """Operations of the matrices and of attention for the real tokens."""
        if self._operations is None:
            self._operations = Operations(cast(Transformer, model))
        real = {"encoder": batch.source, "decoder": batch.target_out}
        return self._operations.update({stack: tokens.ne(PAD).sum(1) for stack, tokens in real.items()})

    def sketch(self) -> Sketch:
        """Sentences of 32 tokens over data.vocab."""
        model = self._model(self.config.data.vocab)

        def forward(tokens: int) -> Tensor:
            batch = torch.full((max(1, tokens // LENGTH), min(tokens, LENGTH)), 4)
            return model.features(batch, batch)

        note = f"tokens of each side; sentences of {LENGTH} tokens"
        return Sketch(model, forward, self._flops_per_token(model), self.config.data.corpus_tokens, note)

    def _flops_per_token(self, model: Transformer) -> dict[str, float]:
        """Operations of training for each token of a side; attention's, which depend on both lengths, count to the target's."""
        cost = Operations(model)
        with unset_fake_temporarily():  # lengths are real numbers
            lengths = {stack: torch.tensor([LENGTH]) for stack in self.config.model.stacks}
            attention = TRAINING * cost.attention(lengths) / LENGTH
        source, target = (TRAINING * cost.per_token[stack] for stack in ("encoder", "decoder"))
        return {"source token": source, "target token": target + attention}

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """The settings that `bathy.tasks.models.load` builds the model from."""
        return cast(Transformer, model).config.model_dump()

    def write_files(self, run: Path) -> None:
        """The tokenizer, so that the run translates without its data."""
        Codec.load(self.splits[0].folder).save(run)


def unigram_entropy(splits: Sequence[Split]) -> float:
    """Entropy in nats of the splits' target tokens, EOS counted."""
    return entropy.unigram_entropy(split.target.ids for split in splits)


def held_out_entropy(config: Config) -> float:
    """Entropy in nats of the validation data's target tokens."""
    return unigram_entropy(open_splits(config.data, "valid"))


def greedy_translations(model: Transformer, split: Split, sentences: int) -> tuple[list[str], list[str]]:
    """Greedy translations of the split's first `sentences` and their references, detokenised on both sides."""
    codec, batches, device = Codec.load(split.folder), Batches([split], tokens=1), model.output_weight.device
    rows = np.arange(min(sentences, len(split)))
    hypotheses: list[Sequence[int]] = []
    references: list[Sequence[int]] = []
    for batch in map(batches.gathered, np.array_split(rows, -(-len(rows) // SENTENCES))):
        found = search([model], batch.source.to(device), Decode(beam=1))
        hypotheses += [best[0].tokens for best in found]
        references += batch.target_out.tolist()
    return codec.decode(hypotheses), codec.decode(references)


def to_examine(config: Config, tokens: int) -> tuple[tuple[Tensor, Tensor], Callable[[Tensor, Any], Tensor]]:
    """The first validation batch as the model reads it, and the loss of the model's output on it, for the clinic."""
    batch = next(ordered(open_splits(config.data, "valid")[0], tokens))
    target = batch.target_out

    def loss(output: Tensor, inputs: Any) -> Tensor:
        return F.cross_entropy(output.float().flatten(0, 1), target[: len(output)].flatten(), ignore_index=PAD)

    return (batch.source, batch.target_in), loss
