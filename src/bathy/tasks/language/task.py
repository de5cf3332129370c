"""Language modelling as the engine sees it: windows of text, cross-entropy over tokens, and whether the context is used."""

# b window, t token, D stream width

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from bathy.core.cost import Operations
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import DataError
from bathy.tasks.entropy import hardly_uses, unigram_entropy
from bathy.tasks.language.batches import WINDOWS, Batch, Hiding, Windows, check_length, in_order
from bathy.tasks.language.config import Config
from bathy.tasks.language.data import TextStream, open_stream
from bathy.tasks.language.sampling import Sampling, continued
from bathy.tasks.models import advice_on_depth
from bathy.train.task import Readings, Sketch, Task

IGNORED = 0.05
"""Share of the improvement over guessing below which the context gap counts as none."""
GAP_ROWS = 4
"""Every so many-th window of a validation batch is read a second time, with a wrong context."""


def make(config: Config) -> Language:
    """The task of a config."""
    return Language(config)


class Language(Task):
    """Trains a causal or a masked language model on the data folder of a config."""

    labels: Mapping[str, tuple[str, str]] = {
        "bits_per_byte": ("bits per byte", ".4f"),
        "accuracy": ("accuracy", ".1%"),
        "context_gap": ("context gap", ".3f"),
        "sample": ("sample", ""),
    }

    def __init__(self, config: Config) -> None:
        self.config = config
        self.masked = config.model.stacks == ["encoder"]
        self.shape = config.train.tokens // config.model.window, config.model.window
        self._operations: Operations | None = None

    @cached_property
    def stream(self) -> TextStream:
        """The training text."""
        return open_stream(self.config.data, "train")

    @cached_property
    def valid(self) -> TextStream:
        """The validation text."""
        return open_stream(self.config.data, "valid")

    def changed(self, config: Any) -> Language:
        """The task of another config over the same data."""
        return type(self)(config)

    def check(self) -> None:
        """Open all data; refuse texts that are too short, and what needs a tokenizer where there is none."""
        for stream in (self.stream, self.valid):
            check_length(stream, 1)
        check_length(self.stream, self.shape[1])
        if self.stream.codec is None and (self.masked or self.config.data.windows == "packed"):
            what = (
                "a masked model needs its mask token" if self.masked else "data.windows = 'packed' needs the end of documents"
            )
            raise DataError(f"{self.stream.folder} has no tokenizer.json; {what}: put the tokenizer there")

    def build(self) -> Transformer:
        """A model of one stack over the data's vocabulary."""
        return self._model(self.stream.vocab)

    def _model(self, vocab: int) -> Transformer:
        return Transformer(TransformerConfig(vocab=vocab, pad=-1, **self.config.model.model_dump()))

    @property
    def _hiding(self) -> Hiding | None:
        codec = self.stream.codec
        if not self.masked or codec is None:
            return None
        return Hiding(self.config.task.mask_share, codec.mask, self.stream.vocab, codec.end)

    def batches(self, rank: int, size: int) -> Windows:
        """Windows of text, random or packed with documents."""
        kind = WINDOWS[self.config.data.windows]
        return kind(self.stream, self.shape, self.config.train.seed, rank, size, self._hiding)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """(smoothed loss, NLL), summed over the tokens to predict."""
        network = cast(Transformer, model)
        smoothing = self.config.optim.label_smoothing if model.training else 0.0
        return self._loss(network, features(network, batch), batch, smoothing)

    def _loss(self, model: Transformer, x_btd: Tensor, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        where = slice(None) if batch.chosen is None else batch.chosen.flatten()
        return model.cross_entropy(x_btd.flatten(0, 1)[where], batch.targets.flatten()[where], smoothing)

    def tokens(self, batch: Batch) -> int:
        """Tokens to predict."""
        return batch.count

    def inputs(self, batch: Batch) -> dict[str, Tensor] | Tensor:
        """The tokens that the model reads, with their documents where it must know them."""
        return batch.tokens if batch.documents is None else {"source": batch.tokens, "documents": batch.documents}

    def held_out(self, rank: int, size: int) -> Iterable[Batch]:
        """The whole validation text, each token once."""
        return in_order(self.valid, self.shape, rank, size, self._document_end, self._hiding)

    @property
    def _document_end(self) -> int | None:
        codec = self.valid.codec
        return codec.end if codec and self.config.data.windows == "packed" else None

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        """NLL, in bits per byte of text as well, and how much of it the context explains."""
        network, count = cast(Transformer, model), float(batch.count)
        x = features(network, batch)
        nll = float(self._loss(network, x, batch)[1])
        readings = {"loss": (nll, count)}
        if self.masked:
            readings["accuracy"] = (float(correct(network, x, batch)), count)
        elif self.valid.bytes_per_token:
            readings["bits_per_byte"] = (nll / math.log(2), count * self.valid.bytes_per_token)
        return readings | self._gap(network, x, batch)

    def _gap(self, model: Transformer, x_btd: Tensor, batch: Batch) -> dict[str, tuple[float, float]]:
        """How much dearer tokens are when their context is another window's; the token just read, or hidden, stays.

        A causal model that has learned no more than which token follows which has a gap of 0. A batch of one window has no
        other to take the context from, and says nothing.
        """
        every = GAP_ROWS if len(batch.tokens) > GAP_ROWS else 1
        part = Batch(*(None if p is None else p[::every] for p in vars(batch).values()))  # type: ignore[arg-type]
        if len(part.tokens) < 2:
            return {}
        odd = torch.arange(part.tokens.shape[1], device=part.tokens.device) % 2 == 1
        asked = odd.expand_as(part.tokens) if part.chosen is None else part.chosen
        if not asked.any():
            return {}
        part = replace(part, chosen=asked, documents=None)
        wrong = replace(part, tokens=torch.where(asked, part.tokens, part.tokens.roll(1, 0)))
        right = features(model, part) if batch.documents is not None else x_btd[::every]
        costs = [float(self._loss(model, x, part)[1]) for x in (features(model, wrong), right)]
        return {"context_gap": (costs[0] - costs[1], float(part.count))}

    def show(self, model: nn.Module) -> dict[str, Any]:
        """A sample: a continuation of task.prompt, or a piece of text with hidden tokens filled in."""
        if not self.config.task.sample or self.stream.codec is None:
            return {}
        network = cast(Transformer, model)
        text = self._filled(network) if self.masked else self._continued(network)
        return {"sample": " ↵ ".join(text.split("\n"))}

    def _continued(self, model: Transformer) -> str:
        codec, task = self.stream.codec, self.config.task
        assert codec
        prompt = [codec.end, *codec.encode(task.prompt).tolist()]
        sampling = Sampling(length=task.sample, temperature=self.config.sample.temperature)
        steps = list(continued(model, [prompt], sampling, codec.end))
        return task.prompt + codec.decode(token for (token,) in steps if token >= 0)

    def _filled(self, model: Transformer) -> str:
        codec, batch = self.stream.codec, next(iter(self.held_out(0, 1)))
        assert codec and batch.chosen is not None
        guesses = model(batch.tokens[:1].to(model.output_weight.device)).argmax(-1)[0].tolist()[: self.config.task.sample]
        rows = zip(guesses, batch.targets[0].tolist(), batch.chosen[0].tolist(), strict=False)
        return "".join(f"[{codec.decode([guess])}]" if hidden else codec.decode([token]) for guess, token, hidden in rows)

    def chance(self) -> float:
        """The unigram entropy of the training text."""
        return self._entropy

    @cached_property
    def _entropy(self) -> float:
        return unigram_entropy([self.stream.ids])

    def failing(self, readings: Readings) -> str:
        """That the model has improved on guessing and yet hardly uses what stands further away than one token."""
        improvement = self.chance() - readings["loss"]
        gap = readings.get("context_gap", math.inf)
        return hardly_uses("the model hardly uses its context", improvement, gap, IGNORED)

    def advice(self) -> str:
        """A scheme for depth, where the stack is plain Post-LN."""
        return advice_on_depth(self.config.model)

    def flops(self, model: nn.Module, batch: Batch) -> float:
        """Operations of the matrices and of attention."""
        if self._operations is None:
            self._operations = Operations(cast(Transformer, model))
        rows, length = batch.tokens.shape
        return self._operations.update({self.config.model.stacks[0]: torch.full((rows,), length)})

    def sketch(self) -> Sketch:
        """Windows of the context's length over data.vocab."""
        model, length = self._model(self.config.data.vocab), self.config.model.window

        def forward(tokens: int) -> Tensor:
            return model.features(torch.full((max(1, tokens // length), min(tokens, length)), 4))

        flops = {"token": self._flops_per_token(model, length)}
        return Sketch(model, forward, flops, self.config.data.corpus_tokens, f"windows of {length} tokens")

    def _flops_per_token(self, model: Transformer, length: int) -> float:
        cost, (stack,) = Operations(model), self.config.model.stacks
        with unset_fake_temporarily():  # lengths are real numbers
            return cost.update({stack: torch.tensor([length])}) / length

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """The settings that `bathy.tasks.models.load` builds the model from."""
        return cast(Transformer, model).config.model_dump()

    def write_files(self, run: Path) -> None:
        """The tokenizer, so that the run samples without its data."""
        if self.stream.codec:
            self.stream.codec.save(run)


def held_out_entropy(config: Config) -> float:
    """Unigram entropy in nats of the validation text."""
    return unigram_entropy([open_stream(config.data, "valid").ids])


def features(model: Transformer, batch: Batch) -> Tensor:
    """The stack's output, b × t × D."""
    return model.features(batch.tokens, documents=batch.documents)


def correct(model: Transformer, x_btd: Tensor, batch: Batch) -> Tensor:
    """How many hidden tokens the model finds."""
    where = batch.chosen if batch.chosen is not None else torch.ones_like(batch.targets, dtype=torch.bool)
    return model.logits(x_btd[where]).argmax(-1).eq(batch.targets[where]).sum()


def to_examine(config: Config, tokens: int) -> tuple[Any, Callable[[Tensor, Any], Tensor]]:
    """The first validation windows as the model reads them, and the loss of the model's output on them, for the clinic."""
    task = make(
        config.model_copy(update={"train": config.train.model_copy(update={"tokens": max(tokens, config.model.window)})})
    )
    batch = next(iter(task.held_out(0, 1)))

    def loss(output: Tensor, inputs: Any) -> Tensor:
        targets, chosen = batch.targets[: len(output)], batch.chosen
        where = torch.ones_like(targets, dtype=torch.bool) if chosen is None else chosen[: len(output)]
        return F.cross_entropy(output.float()[where], targets[where])

    return task.inputs(batch), loss
