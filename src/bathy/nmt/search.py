"""Search: the translations that a model, or an ensemble of models, finds best.

A hypothesis y, its end mark counted, scores Σ log p(y_t) / |y|^λ. Each step takes the 2·beam best continuations of a
sentence: end marks among the first `beam` of them finish a hypothesis, the best `beam` others live on. A sentence is done
when no live hypothesis can still enter its n best: log-probabilities only fall, so that a live one reaches at most
log p / L^λ, L the longest length allowed (for λ < 0 the shortest still possible). This is exact: going on would change nothing.
A beam of 1 is greedy search and ends with its first end mark.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from bathy.attention import Cache
from bathy.nmt.marks import BOS, EOS, PAD, UNK
from bathy.settings import Settings
from bathy.transformer import Transformer

FREE = -1
"""In place of a token id: any token may stand here."""

# s sentence, k hypothesis of its beam, v vocabulary, t target position


class Decode(Settings, section="decode"):
    """How translations are searched. Lengths count tokens, the end mark included."""

    beam: PositiveInt = 4
    """Hypotheses kept for each sentence; 1 is greedy search."""
    length_penalty: float = 0.6
    """λ in Σ log p / |y|^λ: 0 sums log-probabilities, 1 takes their mean, more favours longer translations."""
    min_length: PositiveInt = 1
    """Fewest tokens of a translation."""
    max_length: NonNegativeInt = 0
    """Most tokens of a translation; 0 allows twice the source's tokens and 10 more."""
    n_best: PositiveInt = 1
    """Translations returned for each sentence."""
    average: PositiveInt = 10
    """Last checkpoints of a run whose weights are averaged before translating."""

    @model_validator(mode="after")
    def parts_fit(self) -> Self:
        """Refuse more results than hypotheses, and a maximum below the minimum."""
        if self.n_best > self.beam:
            raise ValueError(f"decode.n_best is {self.n_best}; it can be at most decode.beam ({self.beam})")
        if 0 < self.max_length < self.min_length:
            raise ValueError(
                f"decode.max_length is {self.max_length}; it must be at least decode.min_length ({self.min_length})"
            )
        return self

    def normalise(self, log_prob: Tensor, length: Tensor | int) -> Tensor:
        """log p / |y|^λ."""
        return log_prob / length**self.length_penalty

    def limits(self, source: Tensor, longest: int) -> Tensor:
        """For each sentence, the longest translation allowed; it depends on nothing but the sentence itself."""
        tokens = source.ne(PAD).sum(1)
        limits = torch.full_like(tokens, self.max_length) if self.max_length else 2 * tokens + 10
        return limits.clamp(min=self.min_length, max=longest)


@dataclass(frozen=True, order=True)
class Hypothesis:
    """A translation as token ids, without begin and end marks, and its score."""

    score: float
    tokens: tuple[int, ...]


class Ensemble:
    """Models that translate one batch together, step by step: p is the mean of their probabilities."""

    def __init__(self, models: Sequence[Transformer], source: Tensor, beams: int) -> None:
        self.models = models
        self.memories = [model.encode(source) for model in models]
        self.caches: list[Cache] = [model.cache(beams) for model in models]

    def step(self, tokens_sk: Tensor) -> Tensor:
        """Log-probabilities of each hypothesis' next token (s k v)."""
        parts = zip(self.models, self.memories, self.caches, strict=True)
        logits = [model.logits(model.decode(tokens_sk, *memory, cache)) for model, memory, cache in parts]
        return mean_log_probs(logits)

    def follow_(self, parents_sk: Tensor) -> None:
        """Go on from these hypotheses."""
        for cache in self.caches:
            cache.follow_(parents_sk)

    def select_(self, rows: Tensor) -> None:
        """Keep these sentences."""
        self.memories = [(memory[rows], mask[rows]) for memory, mask in self.memories]
        for cache in self.caches:
            cache.select_(rows)


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """log of the models' mean probability, in float32 or better, written over the logits."""
    exact = [part.to(torch.promote_types(part.dtype, torch.float32)) for part in logits]
    parts = [torch.log_softmax(part, -1, out=part) for part in exact]
    return parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0).sub_(math.log(len(parts)))


@torch.inference_mode()
def search(
    models: Sequence[Transformer], source: Tensor, decode: Decode, prefix: Tensor | None = None
) -> list[list[Hypothesis]]:
    """The n best translations of each row of `source`, best first; `prefix` (s t, padded) is what each must begin with."""
    beam = Beam(models, source, decode, prefix)
    while len(beam.ids):
        beam.step_()
    return [found[::-1] for found in beam.found]


class Beam:
    """The hypotheses of the sentences that are still undecided, and what was found."""

    def __init__(self, models: Sequence[Transformer], source: Tensor, decode: Decode, prefix: Tensor | None) -> None:
        sentences, device = len(source), source.device
        self.decode, self.ensemble = decode, Ensemble(models, source, decode.beam)
        self.found: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        """For each sentence its best finished hypotheses, best last."""
        self.limits = decode.limits(source, min(model.config.max_length for model in models))
        self.forced = forced_tokens(self.limits, source[:, :0] if prefix is None else prefix)
        self.ids = torch.arange(sentences, device=device)
        """Rows of the source that are undecided; all that follows has one row for each of them."""
        self.tokens_skt = source.new_full((sentences, decode.beam, 1), BOS)
        self.log_probs_sk = torch.full((sentences, decode.beam), -math.inf, device=device)
        self.log_probs_sk[:, 0] = 0.0  # all hypotheses begin alike: one stands for them

    def step_(self) -> None:
        """One more token for every hypothesis."""
        log_probs_skv = self.ensemble.step(self.tokens_skt[:, :, -1])
        length, size, vocab = self.tokens_skt.shape[2], self.decode.beam, log_probs_skv.shape[2]
        constrain_(log_probs_skv, self.forced[:, length - 1], ending=length >= self.decode.min_length)
        log_probs, index = top(log_probs_skv.add_(self.log_probs_sk[..., None]).flatten(1), 2 * size)
        parents, tokens = index // vocab, index % vocab
        ends = tokens.eq(EOS)
        self._finish(ends[:, :size], self.decode.normalise(log_probs[:, :size], length), parents)
        order = ends.byte().sort(dim=1, stable=True).indices[:, :size]
        log_probs = log_probs.masked_fill(ends, -math.inf)
        self._go_on(log_probs.gather(1, order), parents.gather(1, order), tokens.gather(1, order))
        self._drop_decided()

    def _finish(self, ends: Tensor, scores: Tensor, parents: Tensor) -> None:
        """Hypotheses that end here join what was found."""
        for row, rank in (ends & scores.isfinite()).nonzero().tolist():
            tokens = self.tokens_skt[row, parents[row, rank], 1:].tolist()
            found = self.found[self.ids[row]]
            insort(found, Hypothesis(scores[row, rank].item(), tuple(tokens)))
            del found[: -self.decode.n_best]

    def _go_on(self, log_probs: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """The living hypotheses: these tokens behind those parents."""
        self.ensemble.follow_(parents)
        histories = self.tokens_skt.gather(1, parents[..., None].expand(-1, -1, self.tokens_skt.shape[2]))
        self.tokens_skt, self.log_probs_sk = torch.cat([histories, tokens[..., None]], 2), log_probs

    def _drop_decided(self) -> None:
        """Leave sentences whose n best no living hypothesis can enter any more; the last rows take their places."""
        bars = torch.tensor([self._bar(sentence) for sentence in self.ids.tolist()]).to(self.log_probs_sk)
        length = self.tokens_skt.shape[2]  # of the shortest translation still to come
        reach = self.limits if self.decode.length_penalty > 0 else torch.full_like(self.limits, length)
        open_ = bars < self.decode.normalise(self.log_probs_sk[:, 0], reach)
        if open_.all():
            return
        rows = torch.arange(int(open_.sum()), device=open_.device)
        rows[~open_[: len(rows)]] = open_[len(rows) :].nonzero().squeeze(1) + len(rows)
        self.ensemble.select_(rows)
        self.ids, self.limits, self.forced = self.ids[rows], self.limits[rows], self.forced[rows]
        self.tokens_skt, self.log_probs_sk = self.tokens_skt[rows], self.log_probs_sk[rows]

    def _bar(self, sentence: int) -> float:
        """The score that a new hypothesis must beat."""
        found = self.found[sentence]
        if found and self.decode.beam == 1:
            return math.inf
        return found[0].score if len(found) == self.decode.n_best else -math.inf


def forced_tokens(limits: Tensor, prefix: Tensor) -> Tensor:
    """For each sentence and position the one token that may stand there, or FREE: the prefix, and the end mark at the limit."""
    forced = limits.new_full((len(limits), int(limits.max())), FREE)
    forced[:, : prefix.shape[1]] = prefix.masked_fill(prefix.eq(PAD), FREE)
    return forced.scatter(1, limits[:, None] - 1, EOS)


def constrain_(log_probs_skv: Tensor, forced: Tensor, ending: bool) -> None:
    """Leave only tokens that may come: the forced one, or all but pad, unk, bos and, unless it may end, the end mark."""
    rows = forced.ne(FREE).nonzero().squeeze(1)
    kept = log_probs_skv[rows, :, forced[rows]]
    log_probs_skv[..., [PAD, UNK, BOS] if ending else [PAD, UNK, BOS, EOS]] = -math.inf
    log_probs_skv[rows] = -math.inf
    log_probs_skv[rows, :, forced[rows]] = kept


def top(values: Tensor, k: int, block: int = 64) -> tuple[Tensor, Tensor]:
    """The k largest of each row, as `topk`: they lie in the k blocks with the largest maxima, or in the rest of the row."""
    whole = values.shape[1] // block * block
    if whole <= k * block:
        best, index = values.topk(k)
        return best, index
    blocks = values[:, :whole].unflatten(1, (-1, block))
    chosen = blocks.amax(2).topk(k).indices[..., None]
    index = (chosen * block + torch.arange(block, device=values.device)).flatten(1)
    rest = torch.arange(whole, values.shape[1], device=values.device).expand(len(values), -1)
    index = torch.cat([index, rest], 1)
    best, place = values.gather(1, index).topk(k)
    return best, index.gather(1, place)


@torch.inference_mode()
def rate(models: Sequence[Transformer], source: Tensor, target: Tensor, decode: Decode) -> Tensor:
    """The score of each given translation (s t, end mark included, padded), as if search had found it."""
    target_in = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], 1)
    log_probs = mean_log_probs([model(source, target_in) for model in models])
    real = target.ne(PAD)
    picked = log_probs.gather(2, target[..., None]).squeeze(2).masked_fill(~real, 0.0)
    return decode.normalise(picked.sum(1), real.sum(1))
