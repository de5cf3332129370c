"""Search: the translations that a model, or an ensemble of models, finds best.

A hypothesis y, EOS included, scores Σ log p(y_t) / |y|^λ. Each step takes the 2·beam best continuations of a
sentence: an EOS among the first `beam` of them finishes a hypothesis, and the best `beam` others are kept. A sentence is done
when no open hypothesis can still enter its n best: log-probabilities only fall, so that an open one reaches at most
log p / L^λ, L the longest length allowed (for λ < 0 the shortest still possible). Searching further would change nothing.
A beam of 1 is greedy search and stops at its first EOS.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from bathy.core.transformer import Transformer
from bathy.errors import ModelError, unknown
from bathy.settings import Settings
from bathy.tasks.inference import Prepared, begin
from bathy.tasks.special_tokens import BOS, EOS, PAD

Model = Transformer | Prepared
Number = TypeVar("Number", float, Tensor)
Open = tuple[float, int, Any]
"""An open hypothesis: Σ log p, last token, and the hypothesis before that token (None before BOS)."""

PRECISIONS = ("float32", "float16", "bfloat16")

# s sentence, k hypothesis of its beam, v vocabulary, t target position


WIDEST = 10_000
"""Hypotheses that a search can keep; memory ends long before."""


class Decode(Settings, section="decode"):
    """How translations are searched. Lengths count tokens, EOS included."""

    changeable: ClassVar[bool] = True

    beam: PositiveInt = Field(default=4, le=WIDEST)
    """Hypotheses kept for each sentence; 1 is greedy search."""
    length_penalty: float = Field(default=0.6, ge=-20, le=20)
    """λ in Σ log p / |y|^λ: 0 sums log-probabilities, 1 takes their mean, more favours longer translations."""
    min_length: PositiveInt = 1
    """Fewest tokens of a translation."""
    max_length: NonNegativeInt = 0
    """Most tokens of a translation; 0 allows twice the source's tokens and 10 more."""
    n_best: PositiveInt = 1
    """Translations returned for each sentence."""
    patience: NonNegativeFloat = 0.0
    """0 searches until nothing better can come; p > 0 stops a sentence once p·beam of its hypotheses are finished."""
    average: NonNegativeFloat = 0.0
    """Last checkpoints of a run whose weights are averaged before translating: a share of the run below 1, else a number;
    0: what the end of training found best, else the last tenth."""
    precision: str = "float32"
    """Number format of the weights while translating: float32, float16 or bfloat16, which needs half the memory."""

    @model_validator(mode="after")
    def parts_fit(self) -> Self:
        """Refuse more results than hypotheses, a maximum below the minimum, and an unknown number format."""
        if self.precision not in PRECISIONS:
            raise ValueError(f"decode.precision: {unknown('precision', self.precision, PRECISIONS)}")
        if self.n_best > self.beam:
            raise ValueError(f"decode.n_best is {self.n_best}; it can be at most decode.beam ({self.beam})")
        if 0 < self.max_length < self.min_length:
            raise ValueError(
                f"decode.max_length is {self.max_length}; it must be at least decode.min_length ({self.min_length})"
            )
        return self

    def normalise(self, log_prob: Number, length: Number | int) -> Number:
        """log p / |y|^λ."""
        return log_prob / length**self.length_penalty

    def limits(self, source: Tensor, longest: int) -> Tensor:
        """For each sentence, the longest translation allowed; it depends on nothing but the sentence itself."""
        tokens = source.ne(PAD).sum(1)
        limits = torch.full_like(tokens, self.max_length) if self.max_length else 2 * tokens + 10
        return limits.clamp(min=self.min_length, max=longest)


@dataclass(frozen=True, order=True)
class Hypothesis:
    """A translation as token ids, without BOS and EOS, and its score."""

    score: float
    tokens: tuple[int, ...]


class Ensemble:
    """Models that translate one batch together, step by step: p is the mean of their probabilities."""

    def __init__(self, models: Sequence[Model], source: Tensor, beams: int) -> None:
        self.parts = [begin(model, source, beams) for model in models]

    def step(self, tokens_sk: Tensor) -> Tensor:
        """Log-probabilities of each hypothesis' next token (s k v)."""
        return mean_log_probs([part.step(tokens_sk) for part in self.parts])

    def follow_(self, parents: Sequence[int]) -> None:
        """Continue from these hypotheses."""
        for part in self.parts:
            part.follow_(parents)

    def select_(self, rows: Sequence[int]) -> None:
        """Keep these sentences."""
        for part in self.parts:
            part.select_(rows)


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """log of the models' mean probability, in float32 or better."""
    parts = [torch.log_softmax(part, -1, dtype=torch.promote_types(part.dtype, torch.float32)) for part in logits]
    return parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0).sub_(math.log(len(parts)))


@torch.inference_mode()
def search(models: Sequence[Model], source: Tensor, decode: Decode, prefix: Tensor | None = None) -> list[list[Hypothesis]]:
    """The n best translations of each row of `source`, best first; `prefix` (s t, padded) is what each must begin with."""
    limits = decode.limits(source, min(model.config.max_length for model in models)).tolist()
    prefixes = [[]] * len(source) if prefix is None else [[i for i in row if i != PAD] for row in prefix.tolist()]
    sentences = [Sentence(decode, *parts) for parts in zip(limits, prefixes, strict=True)]
    ensemble, undecided = Ensemble(models, source, decode.beam), sentences
    while undecided:
        undecided = step(ensemble, undecided, decode, source.device)
    return [sentence.found[::-1] for sentence in sentences]


def step(ensemble: Ensemble, sentences: list[Sentence], decode: Decode, device: torch.device) -> list[Sentence]:
    """One more token for every hypothesis; returns the sentences that are still undecided, as the ensemble then has them."""
    size = decode.beam
    tokens = torch.tensor([[token for _, token, _ in one.open] for one in sentences], device=device)
    log_probs_skv = ensemble.step(tokens)
    constrain_(log_probs_skv, [one.forced() for one in sentences], ending=sentences[0].length + 1 >= decode.min_length)
    so_far = log_probs_skv.new_tensor([[log_prob for log_prob, _, _ in one.open] for one in sentences])
    scores = log_probs_skv.add_(so_far[..., None]).flatten(1)
    values, index = top(scores, min(2 * size, scores.shape[1]))
    columns, parents = tokens.shape[1], list[int]()
    for row, (one, best, places) in enumerate(zip(sentences, values.tolist(), index.tolist(), strict=True)):
        parents += [row * columns + parent for parent in one.extend(best, places, log_probs_skv.shape[2])]
    ensemble.follow_(parents)
    rows = remaining([one.decided() for one in sentences])
    if len(rows) < len(sentences) and rows:
        ensemble.select_(rows)
    return [sentences[row] for row in rows]


class Sentence:
    """The search for one sentence's translation: its open hypotheses and what was found. Plain numbers, no tensors."""

    def __init__(self, decode: Decode, limit: int, prefix: list[int]) -> None:
        self.decode, self.limit, self.prefix = decode, limit, prefix
        self.length = 0
        """Tokens of each open hypothesis."""
        self.open: list[Open] = [(0.0, BOS, None)]
        """The open hypotheses, best first: one before the first step, then always `beam`."""
        self.found: list[Hypothesis] = []
        """The best finished hypotheses, best last."""
        self.finished = 0
        """Hypotheses finished so far."""

    def forced(self) -> int | None:
        """The one token that may come next: of the prefix, or EOS at the limit; None where any may come."""
        if self.length + 1 == self.limit:
            return EOS
        return self.prefix[self.length] if self.length < len(self.prefix) else None

    def extend(self, log_probs: list[float], places: list[int], vocab: int) -> list[int]:
        """Take the 2·beam best continuations, best first, as places in (hypothesis, token); returns the parents kept."""
        if math.isnan(log_probs[0]):  # NaN counts as the largest
            raise ModelError("the model's probabilities are NaN: its weights are damaged, or too large for the precision")
        self.length, size = self.length + 1, self.decode.beam
        ranked = [(log_prob, place % vocab, place // vocab) for log_prob, place in zip(log_probs, places, strict=True)]
        for log_prob, token, parent in ranked[:size]:
            if token == EOS and log_prob > -math.inf:
                self._finish(log_prob, self.open[parent])
        kept = [one for one in ranked if one[1] != EOS][:size]
        kept += [(-math.inf, PAD, 0)] * (size - len(kept))  # a vocabulary smaller than the beam: impossible ones stand in
        self.open = [(log_prob, token, self.open[parent]) for log_prob, token, parent in kept]
        return [parent for _, _, parent in kept]

    def _finish(self, log_prob: float, last: Open) -> None:
        insort(self.found, Hypothesis(self.decode.normalise(log_prob, self.length), history(last)))
        del self.found[: -self.decode.n_best]
        self.finished += 1

    def decided(self) -> bool:
        """Whether no open hypothesis can enter the n best any more, or patience has run out."""
        full, patience = len(self.found) == self.decode.n_best, self.decode.patience * self.decode.beam
        if full and (self.decode.beam == 1 or 0 < patience <= self.finished):
            return True
        reach = self.limit if self.decode.length_penalty > 0 else self.length + 1
        return (self.found[0].score if full else -math.inf) >= self.decode.normalise(self.open[0][0], reach)


def history(last: Open | None) -> tuple[int, ...]:
    """The tokens of a hypothesis, without BOS."""
    tokens: list[int] = []
    while last is not None and last[2] is not None:
        tokens.append(last[1])
        last = last[2]
    return tuple(reversed(tokens))


def remaining(decided: Sequence[bool]) -> list[int]:
    """The rows that are not decided; the last ones take the places of those that leave, so that few move."""
    rows = [row for row, done in enumerate(decided) if not done]
    kept = [row for row in rows if row < len(rows)]
    movers = iter(rows[len(kept) :])
    return [row if not decided[row] else next(movers) for row in range(len(rows))]


def constrain_(log_probs_skv: Tensor, forced: Sequence[int | None], ending: bool) -> None:
    """Leave only tokens that may come: the forced one, or all but pad, unk, bos and, unless it may end, EOS."""
    bound = [(row, token) for row, token in enumerate(forced) if token is not None]
    kept = [log_probs_skv[row, :, token].clone() for row, token in bound]
    log_probs_skv.narrow(2, 0, EOS if ending else EOS + 1).fill_(-math.inf)  # pad, unk and bos are the ids before EOS
    for (row, token), values in zip(bound, kept, strict=True):
        log_probs_skv[row] = -math.inf
        log_probs_skv[row, :, token] = values


def top(values: Tensor, k: int, block: int = 64) -> tuple[Tensor, Tensor]:
    """The k largest of each row, as `topk`: they lie in the k blocks with the largest maxima, or in the rest of the row."""
    whole = values.shape[1] // block * block
    if whole <= max(k * block, 4096):
        best, index = values.topk(k)
        return best, index
    blocks = values[:, :whole].unflatten(1, (-1, block))
    starts = blocks.amax(2).topk(k).indices.mul_(block)
    index = (starts[..., None] + torch.arange(block, device=values.device)).flatten(1)
    if whole < values.shape[1]:
        rest = torch.arange(whole, values.shape[1], device=values.device).expand(len(values), -1)
        index = torch.cat([index, rest], 1)
    best, place = values.gather(1, index).topk(k)
    return best, index.gather(1, place)


@torch.inference_mode()
def rate(models: Sequence[Transformer], source: Tensor, target: Tensor, decode: Decode) -> Tensor:
    """The score of each given translation (s t, EOS included, padded), as if search had found it."""
    target_in = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], 1)
    log_probs = mean_log_probs([model(source, target_in) for model in models])
    real = target.ne(PAD)
    picked = log_probs.gather(2, target[..., None]).squeeze(2).masked_fill(~real, 0.0)
    return decode.normalise(picked.sum(1), real.sum(1))
