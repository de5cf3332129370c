"""Batching laws: each sentence once, budgets held, ranks disjoint, resuming is never having stopped."""

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bathy.errors import DataError
from bathy.tasks.special_tokens import BOS, EOS, PAD
from bathy.tasks.translation import batches as batches_module
from bathy.tasks.translation import redraw
from bathy.tasks.translation.batches import Batch, Batches, open_splits, ordered
from bathy.tasks.translation.cutting import cut
from bathy.tasks.translation.data import Split
from bathy.tasks.translation.settings import DataConfig
from bathy.tasks.translation.text import Codec
from bathy.train.task import take


class Memory(SimpleNamespace):
    """A split that lives in memory: sentence i is i + 4 repeated, then EOS."""

    def __len__(self) -> int:
        return len(self.source)


class Rows:
    def __init__(self, lengths: list[int]) -> None:
        self.offsets = np.cumsum([0, *lengths])
        self.ids = np.concatenate([np.r_[np.full(n - 1, i + 4), EOS] for i, n in enumerate(lengths)])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets).astype(np.int32)


def split(pairs: list[tuple[int, int]]) -> Memory:
    return Memory(source=Rows([a for a, _ in pairs]), target=Rows([b for _, b in pairs]), folder=Path("memory"), name="train")


lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=8, max_size=120)
where = {"seed": st.integers(0, 9), "epoch": st.integers(0, 3), "size": st.sampled_from([1, 2, 3, 4])}


def epoch_of(pairs: list[tuple[int, int]], seed: int, epoch: int, rank: int, size: int, tokens: int = 64) -> list[Batch]:
    stream = Batches([split(pairs)], tokens, seed, rank, size)  # type: ignore[list-item]
    stream.load_state_dict({"epoch": epoch, "position": 0, "size": size, "seed": seed})
    return take(stream, len(stream))


@settings(deadline=None, max_examples=60)
@given(pairs=lengths, **where)
def test_the_ranks_together_use_each_sentence_once(pairs: list[tuple[int, int]], seed: int, epoch: int, size: int) -> None:
    ranks = [epoch_of(pairs, seed, epoch, rank, size) for rank in range(size)]
    assert len({len(rank) for rank in ranks}) == 1
    used = np.concatenate([batch.rows for rank in ranks for batch in rank])
    assert sorted(used) == list(range(len(pairs)))


@settings(deadline=None, max_examples=60)
@given(pairs=lengths, **where)
def test_every_batch_is_within_its_budget_and_holds_its_sentences(
    pairs: list[tuple[int, int]], seed: int, epoch: int, size: int
) -> None:
    for batch in epoch_of(pairs, seed, epoch, 0, size):
        assert batch.source.numel() <= 64 and batch.target_out.numel() <= 64
        assert torch.equal(batch.target_in[:, 0], torch.full((len(batch.rows),), BOS))
        for row, source, target in zip(batch.rows, batch.source, batch.target_out, strict=True):
            wanted = [[row + 4] * (n - 1) + [EOS] for n in pairs[row]]
            assert [source[source != PAD].tolist(), target[target != PAD].tolist()] == wanted
        assert batch.source_tokens == sum(pairs[row][0] for row in batch.rows)
        assert batch.target_tokens == sum(pairs[row][1] for row in batch.rows)


@settings(deadline=None, max_examples=40)
@given(pairs=lengths, stop=st.integers(0, 60), size=st.sampled_from([1, 2, 3]), seed=st.integers(0, 5))
def test_resuming_is_never_having_stopped(pairs: list[tuple[int, int]], stop: int, size: int, seed: int) -> None:
    data = split(pairs)
    whole = Batches([data], 64, seed, size - 1, size)  # type: ignore[list-item]
    take(whole, stop)
    again = Batches([data], 64, 77, size - 1, size)  # type: ignore[list-item]
    again.load_state_dict(whole.state_dict())
    assert [b.rows.tolist() for b in take(again, 12)] == [b.rows.tolist() for b in take(whole, 12)]


@settings(deadline=None, max_examples=30)
@given(pairs=lengths, weight=st.sampled_from([0.25, 0.5, 0.75, 1.5, 2.0]))
def test_weights_say_how_often_a_corpus_is_visited(pairs: list[tuple[int, int]], weight: float) -> None:
    stream = Batches([split(pairs), split([(3, 3)] * 5)], 64, weights=(weight, 1.0))  # type: ignore[list-item]
    seen = np.zeros(len(pairs) + 5)
    for epoch in range(4):
        stream.epoch, stream.position = epoch, 0
        for batch in take(stream, len(stream)):
            np.add.at(seen, batch.rows, 1)
    assert seen[len(pairs) :].tolist() == [4.0] * 5
    assert abs(seen[: len(pairs)].sum() - 4 * weight * len(pairs)) <= 1
    assert np.ptp(seen[: len(pairs)]) <= 1


def test_batches_waste_little_and_come_in_random_order(toy_data: Path) -> None:
    stream = Batches([Split(toy_data, "train")], tokens=512, seed=2)
    batches = [batch for _ in range(10) for batch in take(stream, len(stream))]
    assert np.mean([batch.efficiency for batch in batches]) > 0.9
    longest = np.array([batch.source.shape[1] for batch in batches])
    assert abs(np.corrcoef(longest[1:], longest[:-1])[0, 1]) < 0.2
    assert len({tuple(sorted(batch.rows)) for batch in batches}) > 0.8 * len(batches)


def test_sorting_both_sides_beats_sorting_one() -> None:
    rng = np.random.default_rng(0)
    source = rng.integers(3, 30, 4000).astype(np.int32)
    target = np.maximum(2, source + rng.integers(-6, 7, 4000)).astype(np.int32)

    def share(batches: list[Any]) -> float:
        return sum(map(int, source + target)) / sum(len(b) * (source[b].max() + target[b].max()) for b in batches)

    plain = np.argsort(np.maximum(source, target), kind="stable")
    ours = cut(source, target, 1024, rng)
    assert share(ours) > share(np.split(plain, np.cumsum([len(batch) for batch in ours])[:-1])) + 0.02


def test_dropout_changes_subwords_but_neither_words_nor_budget(toy_data: Path) -> None:
    codec = Codec.load(toy_data)
    data = Split(toy_data, "train")
    stream = Batches([data], tokens=512, seed=4, dropout=0.3)
    batches = take(stream, 3)
    for batch in batches:
        assert batch.source.numel() <= 512 and batch.target_out.numel() <= 512
        plain = stream.gathered(batch.rows)
        assert codec.tokens(batch.source.tolist(), "source") == codec.tokens(plain.source.tolist(), "source")
        assert codec.tokens(batch.target.tolist()) == codec.tokens(plain.target.tolist())
        assert batch.source_tokens > plain.source_tokens
    again = Batches([data], tokens=512, seed=4, dropout=0.3)
    assert all(torch.equal(a.source, b.source) for a, b in zip(take(again, 3), batches, strict=True))


@pytest.mark.parametrize("spare", [1.01, 0.6], ids=["as planned", "too little room"])
def test_with_dropout_ranks_share_each_sentence_and_resume_anywhere(
    toy_data: Path, spare: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redraw, "SPARE", spare)
    monkeypatch.setattr(batches_module, "WINDOW", 5)
    data = Split(toy_data, "train")
    ranks = [Batches([data], 500, 3, rank, 2, dropout=0.2) for rank in range(2)]
    epochs = [take(stream, len(stream)) for stream in ranks]
    assert sorted(np.concatenate([batch.rows for epoch in epochs for batch in epoch])) == list(range(len(data)))
    assert all(max(batch.source.numel(), batch.target_out.numel()) <= 500 for epoch in epochs for batch in epoch)
    alone = Batches([data], 500, 77, dropout=0.2)
    assert len(Batches([data], 500, 3, dropout=0.2)) % 2 == 0  # else two ranks halve a batch, with or without dropout
    alone.load_state_dict({"epoch": 0, "position": 3, "size": 2, "seed": 3})
    both = [batch.source for pair in zip(*epochs, strict=True) for batch in pair]
    assert all(torch.equal(batch.source, one) for batch, one in zip(take(alone, 8), both[6:14], strict=True))


def test_dropout_pads_little_and_draws_at_its_rate(toy_data: Path) -> None:
    data, codec = Split(toy_data, "train"), Codec.load(toy_data)
    stream = Batches([data], tokens=512, seed=4, dropout=0.3)
    batches = [batch for _ in range(4) for batch in take(stream, len(stream))]
    drawn, subwords = Random(5), codec.subwords["source"]
    lines = [subwords.decode(data.source[row].tolist()) for row in range(len(data))]
    expected = sum(len(subwords.encode_with_dropout(line, 0.3, drawn)) + 1 for line in lines)
    assert sum(batch.source_tokens for batch in batches) / 4 == pytest.approx(expected, rel=0.03)
    assert np.mean([batch.efficiency for batch in batches]) > 0.88


def test_validation_gives_each_sentence_once_and_the_same_batches(toy_data: Path) -> None:
    valid = Split(toy_data, "valid")
    rows = [np.concatenate([batch.rows for batch in ordered(valid, 200, rank, 2)]) for rank in range(2)]
    assert sorted(np.concatenate(rows)) == list(range(30))
    first, second = ([batch.source.tolist() for batch in ordered(valid, 200)] for _ in range(2))
    assert first == second


def test_what_cannot_be_batched_is_said(toy_data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more than the budget of 8"):
        next(Batches([Split(toy_data, "train")], tokens=8))
    with pytest.raises(DataError, match="3 sentences cannot be shared among 4 ranks"):
        next(Batches([split([(2, 2)] * 3)], 64, size=4))  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"has no split tset; it has train, .* Did you mean test\?"):
        open_splits(DataConfig(path=str(toy_data)), "tset")
    with pytest.raises(DataError, match="is not a data folder"):
        open_splits(DataConfig(path=str(tmp_path)))
