"""What training a language model promises."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from running import train
from torch import Tensor
from typer.testing import CliRunner

from bathy.admin.fold import fold
from bathy.cli import app
from bathy.core.transformer import Transformer
from bathy.errors import ConfigError, DataError
from bathy.settings import settings_to_toml
from bathy.tasks import read_config
from bathy.tasks.language.batches import Batch, Hiding, PackedWindows, RandomWindows, in_order
from bathy.tasks.language.codec import Codec, learn_bpe
from bathy.tasks.language.data import TextStream
from bathy.tasks.language.score import score, score_run
from bathy.tasks.language.task import make as make_task
from bathy.tasks.language.text import documents
from bathy.tasks.models import load
from bathy.train.plan import make_plan

Make = Callable[..., Any]
MASKED = {"encoder_layers": 2, "decoder_layers": 0}


def rows(run: Path, *keys: str) -> list[tuple[Any, ...]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [tuple(row.get(key) for key in ("step", *keys)) for row in found]


def test_a_random_window_is_a_piece_of_the_text_and_its_target_the_next_token(language_data: Path) -> None:
    stream = TextStream(language_data, "train")
    batches = RandomWindows(stream, (3, 16), 1, 0, 1, None)
    text = stream.ids[:].tolist()
    for _ in range(5):
        batch = next(batches)
        for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            assert tokens[1:] == targets[:-1]
            window = [tokens[0], *targets]
            assert any(text[i : i + 17] == window for i in range(len(text)) if text[i] == window[0])


def test_an_epoch_of_packed_windows_has_each_document_once_and_numbers_them(language_data: Path) -> None:
    stream = TextStream(language_data, "train")
    assert stream.codec
    batches = PackedWindows(stream, (2, 16), 1, 0, 1, None)
    found = [next(batches) for _ in range(batches.per_epoch)]
    assert batches.epochs == 1
    tokens = torch.cat([batch.tokens.flatten() for batch in found]).numpy()
    assert len(stream) - len(tokens) < 32
    cut = np.flatnonzero(tokens == stream.codec.end)
    documents = [part.tolist() for part in np.split(tokens, cut)[1:]]
    whole = [stream.ids[a:b].tolist() for a, b in zip(stream.starts[:-1], stream.starts[1:], strict=True)]
    assert all(part in whole for part in documents[:-1])
    assert len({tuple(part[:20]) for part in documents}) == len(documents)
    for batch in found[:20]:
        for row, numbers in zip(
            batch.tokens.tolist(), batch.documents.tolist() if batch.documents is not None else [], strict=True
        ):
            assert numbers == np.cumsum(np.array(row) == stream.codec.end).tolist()


@pytest.mark.parametrize("kind", [RandomWindows, PackedWindows])
def test_ranks_share_the_batches_of_one_rank_and_a_stream_resumes_anywhere(language_data: Path, kind: Any) -> None:
    stream = TextStream(language_data, "train")
    alone = kind(stream, (2, 16), 7, 0, 1, Hiding(0.2, 1, 400, 0))
    expected = [next(alone) for _ in range(8)]
    ranks = [kind(stream, (2, 16), 7, rank, 2, Hiding(0.2, 1, 400, 0)) for rank in range(2)]
    for number, batch in enumerate(expected):
        assert torch.equal(next(ranks[number % 2]).tokens, batch.tokens)
    again = kind(stream, (2, 16), 7, 1, 2, Hiding(0.2, 1, 400, 0))
    again.load_state_dict({"position": 5, "size": 1, "seed": 7})  # saved on one rank, resumed on two
    assert torch.equal(next(again).tokens, expected[5].tokens)


def test_validation_asks_for_each_token_once(language_data: Path) -> None:
    stream = TextStream(language_data, "valid")
    parts = [in_order(stream, (3, 16), rank, 2) for rank in range(2)]
    targets = sorted(token for part in parts for batch in part for token in batch.targets.flatten().tolist())
    assert targets == sorted(stream.ids[1:].tolist())


def test_hidden_tokens_are_berts_shares_and_the_others_stay() -> None:
    text = torch.randint(5, 100, (64, 200))
    batch = Hiding(0.15, 1, 100, 0)(Batch(text, text), [3])
    assert batch.chosen is not None
    hidden = batch.tokens[batch.chosen]
    assert batch.count / text.numel() == pytest.approx(0.15, abs=0.01)
    assert (hidden == 1).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (hidden == text[batch.chosen]).float().mean() == pytest.approx(0.1, abs=0.03)
    assert torch.equal(batch.tokens[~batch.chosen], text[~batch.chosen]) and torch.equal(batch.targets, text)


@pytest.mark.parametrize("windows", ["random", "packed"])
@pytest.mark.parametrize("model", [{}, MASKED])
def test_the_loss_is_the_cross_entropy_of_the_logits(language_config: Make, windows: str, model: dict[str, int]) -> None:
    task = make_task(language_config(data={"windows": windows}, model=model))
    network, batch = task.build().eval(), next(task.batches(0, 1))
    logits = network(batch.tokens, documents=batch.documents)
    where = torch.ones_like(batch.targets, dtype=torch.bool) if batch.chosen is None else batch.chosen
    expected = F.cross_entropy(logits[where], batch.targets[where], reduction="sum")
    torch.testing.assert_close(task.loss(network, batch)[0], expected)
    assert task.tokens(batch) == where.sum()


def test_packed_documents_do_not_see_each_other(language_config: Make) -> None:
    task = make_task(language_config(data={"windows": "packed"}))
    assert task.stream.codec
    model, end = task.build().eval(), task.stream.codec.end
    row = torch.tensor([[end, 9, 8, 7, end, 5, 6]])
    batch = Batch(row, row, documents=row.eq(end).cumsum(1))
    other = replace(batch, tokens=torch.tensor([[end, 9, 8, 7, end, 5, 6]]).where(row.eq(end).cumsum(1) == 2, 11))
    a, b = (model(one.tokens, documents=one.documents) for one in (batch, other))
    torch.testing.assert_close(a[:, 4:], b[:, 4:])
    torch.testing.assert_close(a[:, 4:], model(row[:, 4:]))  # positions start again


def test_bits_per_byte_are_the_nats_of_the_whole_text_over_its_bytes(language_config: Make, tmp_path: Path) -> None:
    config = language_config(train={"steps": 2, "valid_every": 2})
    train(config, tmp_path / "run")
    loss, bits = next(row[1:] for row in rows(tmp_path / "run", "valid_loss", "bits_per_byte") if row[1])
    valid = make_task(config).valid
    assert valid.facts
    assert bits == pytest.approx(loss * len(valid) / math.log(2) / valid.facts["bytes"])


def test_a_run_that_stopped_ends_like_one_that_did_not(language_config: Make, tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {"causal": {}, "masked": {"model": MASKED}, "packed": {"data": {"windows": "packed"}}}
    for name, changes in cases.items():
        whole, parts = tmp_path / f"{name}_whole", tmp_path / f"{name}_parts"
        train(language_config(**changes), whole)
        train(language_config(**changes | {"train": {"steps": 3}}), parts)
        train(language_config(**changes), parts)
        keys = ("loss", "valid_loss", "bits_per_byte", "context_gap", "sample")
        assert rows(whole, *keys) == [row for i, row in enumerate(rows(parts, *keys))], name


def test_a_validation_shows_a_sample_and_does_not_disturb_training(language_config: Make, tmp_path: Path) -> None:
    train(language_config(task={"prompt": "def [b]"}), tmp_path / "a")
    train(language_config(task={"sample": 0}), tmp_path / "b")
    assert rows(tmp_path / "a", "loss") == rows(tmp_path / "b", "loss")
    samples = [row[1] for row in rows(tmp_path / "a", "sample") if row[1]]
    assert len(samples) == 2 and all(text.startswith("def [b]") for text in samples)


def test_guessing_by_frequency_costs_the_unigram_entropy(language_config: Make) -> None:
    task = make_task(language_config())
    counts = np.bincount(task.stream.ids[:])
    log_p = np.log(counts / counts.sum(), where=counts > 0, out=np.zeros(len(counts)))
    assert task.chance() == pytest.approx(-(log_p[task.stream.ids[:]]).mean())


class Follows(torch.nn.Module):
    """A model that knows which token follows which and nothing more: its features are the token it reads."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table

    def features(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        return F.one_hot(tokens, len(self.table)).float()

    def cross_entropy(self, x: Tensor, targets: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        nll = F.cross_entropy(x @ self.table, targets, reduction="sum")
        return nll, nll


def test_a_model_that_ignores_its_context_has_no_gap_and_is_found(language_config: Make) -> None:
    task = make_task(language_config(train={"tokens": 256}))
    ids = torch.from_numpy(task.stream.ids[:].astype(np.int64))
    counts = torch.full((400, 400), 0.01).index_put((ids[:-1], ids[1:]), torch.ones(()), accumulate=True)
    readings: dict[str, list[float]] = {}
    for batch in task.held_out(0, 1):
        for name, (total, weight) in task.measure(Follows(counts.log()), batch).items():
            sums = readings.setdefault(name, [0.0, 0.0])
            sums[:] = sums[0] + total, sums[1] + weight
    means = {name: total / weight for name, (total, weight) in readings.items()}
    assert means["context_gap"] == pytest.approx(0, abs=1e-5)
    assert "hardly uses its context" in task.failing(means | {"loss": task.chance() - 1})
    assert not task.failing(means | {"loss": task.chance() - 1, "context_gap": 0.5})
    assert not task.failing(means | {"loss": task.chance() - 0.1})


@pytest.mark.parametrize(("windows", "measured"), [(1, False), (2, True), (4, True), (5, True), (9, True)])
def test_the_context_gap_of_a_batch_of_few_windows_is_measured_or_not_there(
    windows: int, measured: bool, language_config: Make
) -> None:
    """The gap of an untrained model is small, and not exactly 0 where it was measured."""
    context = 32
    config = language_config(train={"tokens": windows * context}, model={"context": context, "max_length": context})
    task = make_task(config)
    torch.manual_seed(0)
    batch, model = next(iter(task.held_out(0, 1))), task.build().eval()
    with torch.no_grad():
        found = task.measure(model, batch)
    assert len(batch.tokens) == windows and ("context_gap" in found) == measured
    assert not measured or found["context_gap"][0] != 0.0 < found["context_gap"][1]
    assert not task.failing({"loss": task.chance() - 1}), "what was not measured is no alarm"


def test_a_scored_text_costs_what_validation_says(language_config: Make, tmp_path: Path, language_data: Path) -> None:
    config = language_config(train={"steps": 3})
    train(config, tmp_path / "run")
    stream = TextStream(language_data, "valid")
    codec = Codec.load(language_data)
    parts = [stream.ids[a + 1 : b] for a, b in zip(stream.starts[:-1], stream.starts[1:], strict=True)]
    found = score_run(tmp_path / "run", [codec.decode(part) for part in parts])
    loss, bits = [row[1:] for row in rows(tmp_path / "run", "valid_loss", "bits_per_byte") if row[1]][-1]
    assert [found.loss, found.bits_per_byte] == pytest.approx([loss, bits], rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(loss), rel=1e-4)


@pytest.mark.parametrize("scheme", ["admin", "post_ln"])
def test_a_folded_model_costs_the_same(language_config: Make, language_data: Path, tmp_path: Path, scheme: str) -> None:
    train(language_config(model={"decoder_scheme": scheme}, train={"steps": 2}), tmp_path / "run")
    model: Transformer = load(tmp_path / "run").double()
    codec, text = Codec.load(language_data), "import os\n\n\ndef f(x): return x\n"
    assert score(fold(model), codec, [text]).loss == pytest.approx(score(model, codec, [text]).loss, rel=1e-12)


def test_a_masked_model_learns_and_is_scored(language_config: Make, tmp_path: Path) -> None:
    config = language_config(model=MASKED, train={"steps": 30, "valid_every": 10, "tokens": 128}, optim={"lr": 5e-3})
    state = train(config, tmp_path / "run")
    losses = [row[1] for row in rows(tmp_path / "run", "valid_loss") if row[1]]
    assert losses[-1] < losses[0] and state.best < math.log(400)
    found = score_run(tmp_path / "run", ["def f(x):\n    return x\n" * 20])
    assert found.bits_per_byte is None and found.accuracy is not None


def test_a_plan_needs_no_data(language_config: Make) -> None:
    config = language_config(data={"path": "nowhere", "vocab": 1000})
    plan = make_plan(make_task(config), config, devices=[1])
    assert plan.parameters == sum(p.numel() for p in make_task(language_config())._model(1000).parameters())
    assert list(plan.flops) == ["token"]


BAD = {
    "two stacks": ({"model": {"encoder_layers": 1}}, ConfigError, "has one stack"),
    "a batch below a window": ({"train": {"tokens": 8}}, ConfigError, "at least one window"),
}


@pytest.mark.parametrize("case", BAD)
def test_settings_that_do_not_fit_are_refused(language_config: Make, case: str) -> None:
    changes, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        language_config(**changes)


def test_a_context_longer_than_the_text_is_one_clear_line(language_config: Make, tmp_path: Path) -> None:
    config = language_config(model={"context": 100_000, "max_length": 100_000}, train={"tokens": 100_000})
    with pytest.raises(DataError, match=r"model.context is 100000, but .* text has [\d,]+ tokens"):
        train(config, tmp_path / "run")


def test_bin_files_train_without_a_tokenizer_but_not_a_masked_model(language_config: Make, tmp_path: Path) -> None:
    for name in ("train.bin", "val.bin"):
        (np.arange(500) % 50).astype(np.uint16).tofile(tmp_path / name)
    state = train(language_config(data={"path": str(tmp_path), "vocab": 50}, train={"steps": 3}), tmp_path / "run")
    assert math.isfinite(state.valid) and not (tmp_path / "run" / "text.json").exists()
    with pytest.raises(DataError, match="mask token"):
        train(language_config(data={"path": str(tmp_path), "vocab": 50}, model=MASKED), tmp_path / "masked")


def test_the_task_is_found_by_its_kind() -> None:
    config = read_config(None, ["task.kind=language", "model.decoder_layers=2"])
    assert type(make_task(config)).__name__ == "Language" and config.optim.label_smoothing == 0


@pytest.mark.parametrize("model", [{}, MASKED])
def test_the_clinic_examines_a_run(language_config: Make, tmp_path: Path, model: dict[str, int]) -> None:
    train(language_config(model=model, data={"windows": "packed"}, train={"steps": 2}), tmp_path / "run")
    result = CliRunner().invoke(app, ["clinic", str(tmp_path / "run"), "--tokens", "64"], catch_exceptions=False)
    assert result.exit_code == 0 and (tmp_path / "run" / "clinic" / "report.html").exists()


def test_a_sweep_of_language_runs_has_a_row_for_each(language_config: Make, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(settings_to_toml(language_config(train={"steps": 2})))
    command = ["sweep", str(tmp_path / "config.toml"), "--grid", "optim.lr=1e-3,2e-3", "--out", str(tmp_path / "sweep")]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    table = (tmp_path / "sweep" / "results.csv").read_text().splitlines()
    assert len(table) == 3 and all("trained" in row for row in table[1:])


@pytest.mark.parametrize(("entries", "kind"), [(258, "warning"), (450, "error")])
def test_a_tokenizer_of_another_model_is_not_used_in_silence(
    language_config: Make, language_raw: Path, tmp_path: Path, entries: int, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train(language_config(train={"steps": 1}), tmp_path / "run")
    codec = learn_bpe(documents(language_raw), entries)
    codec.save(tmp_path / "run")
    if kind == "error":
        with pytest.raises(ConfigError, match="has 400 token ids, its tokenizer 450; they do not belong together"):
            score_run(tmp_path / "run", ["text"])
    else:
        score_run(tmp_path / "run", ["text"])
        assert "400 token ids, its tokenizer 258" in " ".join(capsys.readouterr().err.split())
