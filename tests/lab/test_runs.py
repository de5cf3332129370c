"""Runs: trained once, found again, and counted as failed where divergence detection stopped them."""

import json
import math
from pathlib import Path

import pytest

from bathy.errors import DataError, Diverged
from bathy.files import write_json
from bathy.lab import runs
from bathy.lab.runs import chance_of_difference, ended, perplexity, read_run, train_if_needed
from bathy.tasks import read_config
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.corpora.toy import write_toy
from bathy.tasks.translation.data import Split
from bathy.tasks.translation.prepare import prepare
from bathy.train.log import read_log


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder / "raw", size=200, held_out=10)
    prepare(read_config(None, [f"data.path='{folder / 'data'}'", f"prepare.raw='{folder / 'raw'}'", "data.vocab=400"]))
    return folder / "data"


@pytest.fixture(scope="module")
def lower(data: Path) -> Path:
    folder, changes = data.parent / "lower", ["data.vocab=400", "prepare.lowercase=true"]
    prepare(read_config(None, [f"data.path='{folder}'", f"prepare.raw='{data.parent / 'raw'}'", *changes]))
    return folder


def config(data: Path, run: Path, *changes: str) -> Config:
    model = ["model.width=16", "model.ffn=16", "model.heads=2", "model.encoder_layers=1", "model.decoder_layers=1"]
    train = ["train.tokens=128", "train.steps=6", "train.valid_every=2", "train.save_every=3", "train.log_every=1"]
    return read_config(None, [f"data.path='{data}'", f"train.run='{run}'", *model, *train, "decode.beam=2", *changes])


def test_an_outcome_is_what_the_metrics_say(data: Path, tmp_path: Path) -> None:
    run = train_if_needed(config(data, tmp_path / "run"))
    last = [row for row in read_log(tmp_path / "run/metrics.jsonl") if "valid_loss" in row][-1]
    targets = Split(data, "valid").target.ids.tolist()
    entropy = -sum(targets.count(i) / len(targets) * math.log(targets.count(i) / len(targets)) for i in set(targets))
    assert run.outcome.loss == last["valid_loss"] and run.outcome.ppl == pytest.approx(math.exp(last["valid_loss"]))
    assert run.outcome.improvement == pytest.approx(entropy - last["valid_loss"])
    assert run.outcome.updates == 6 and [step for step, _ in run.outcome.curve] == [2, 4, 6]
    assert run.outcome.numbers()["early"] == perplexity(run.outcome.curve[0][1])
    assert [step for step, _ in run.checkpoints()] == [3, 6] and run.model().config.width == 16


def test_a_finished_run_is_not_touched(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train_if_needed(config(data, tmp_path / "run"))
    monkeypatch.setattr(runs, "fit", None)
    assert train_if_needed(config(data, tmp_path / "run")) == first


def test_an_outcome_belongs_to_its_settings_and_its_text(data: Path, lower: Path, tmp_path: Path) -> None:
    folder = train_if_needed(config(data, tmp_path / "run")).folder
    assert ended(config(data, tmp_path / "elsewhere"), folder)
    assert not ended(config(data, tmp_path / "run", "optim.lr=2e-3"), folder)
    assert not ended(config(lower, tmp_path / "run"), folder)
    assert not ended(config(data, tmp_path / "run"), tmp_path / "nowhere")


def test_a_test_split_that_was_not_there_changes_no_outcome(data: Path, tmp_path: Path) -> None:
    folder = train_if_needed(config(data, tmp_path / "run")).folder
    outcome = json.loads((folder / "outcome.json").read_text())
    (text,) = outcome["data"]
    for change, same in (({"test_2017": "ids-1"}, True), ({"test": "ids-1"}, False), ({"valid": "ids-1"}, False)):
        write_json(folder / "outcome.json", outcome | {"data": [text | change]})
        assert ended(config(data, tmp_path / "run"), folder) == same, change


def test_an_outcome_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "outcome.json").write_text("{")
    with pytest.raises(DataError, match="not a run's outcome") as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_run_that_diverges_is_an_outcome(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: object) -> None:
        raise Diverged("stopped at update 3")

    monkeypatch.setattr(runs, "fit", give_up)
    outcome = train_if_needed(config(data, tmp_path / "run")).outcome
    assert outcome.stopped and outcome.why == "stopped at update 3"
    assert outcome.improvement == outcome.gap == 0 and outcome.numbers()["ppl"] == math.inf


def test_bleu_is_kept_with_its_signature(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(data, tmp_path / "run")
    run = train_if_needed(settings)
    score = run.bleu(settings, "test")
    assert (
        0 <= score["bleu"] <= score["bleu_lower"] <= 100
        and 0 < score["chrf"] <= 100
        and "tok:none" in (run.folder / "bleu_test.json").read_text()
    )
    assert chance_of_difference(run, run, settings, "test") == 1.0
    monkeypatch.setattr(runs, "translate_split", None)
    assert run.bleu(settings, "test") == score


def test_a_model_of_lower_cased_text_has_no_cased_bleu(lower: Path, tmp_path: Path) -> None:
    settings = config(lower, tmp_path / "run")
    run = train_if_needed(settings)
    assert set(run.bleu(settings, "test")) == {"bleu_lower", "chrf_lower"} and "case:lc" in run.signature("test")
