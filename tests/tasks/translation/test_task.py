"""What translation tells the engine."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bathy.errors import ConfigError
from bathy.tasks import read_config
from bathy.tasks.translation.task import Translation
from bathy.train.task import peek, take


@pytest.fixture
def task(toy_data: Path) -> Translation:
    sizes = ["encoder_layers=2", "decoder_layers=2", "width=16", "ffn=32", "heads=2"]
    changes = [f"data.path='{toy_data}'", "train.tokens=512", *(f"model.{size}" for size in sizes)]
    return Translation(read_config(None, changes))


def test_a_decoder_that_ignores_the_source_is_failing_and_others_are_not(task: Translation) -> None:
    chance = task.chance()
    assert "hardly uses the source" in task.failing({"loss": chance - 1, "source_gap": 0.05})
    assert not task.failing({"loss": chance - 1, "source_gap": 0.2})
    assert not task.failing({"loss": chance - 0.1, "source_gap": 0.0})  # it has not begun to learn


def test_the_readings_are_their_definitions(task: Translation) -> None:
    model, batch = task.build().eval(), next(iter(task.held_out(0, 1)))
    with torch.no_grad():
        readings = task.measure(model, batch)
        nll = {}
        for name, source in (("right", batch.source), ("wrong", batch.source.roll(1, 0))):
            logits = model(source, batch.target_in)
            nll[name] = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=0, reduction="sum"
            )
    tokens = float(batch.target_out.ne(0).sum())
    assert readings["loss"] == pytest.approx((float(nll["right"]), tokens), rel=1e-5)
    assert readings["source_gap"] == pytest.approx((float(nll["wrong"] - nll["right"]), tokens), abs=1e-2)


def test_chance_is_the_unigram_entropy(task: Translation) -> None:
    ids = torch.from_numpy(np.asarray(task.splits[0].target.ids[:]).astype("int64"))
    share = ids.bincount()[ids.unique()] / len(ids)
    assert task.chance() == pytest.approx(-float((share * share.log()).sum()), rel=1e-5)


def test_peeking_takes_nothing(task: Translation) -> None:
    stream, other = task.batches(0, 1), task.batches(0, 1)
    first = peek(stream)
    assert [batch.rows.tolist() for batch in take(stream, 5)] == [batch.rows.tolist() for batch in take(other, 5)]
    assert first.rows.tolist() == peek(task.batches(0, 1)).rows.tolist()


def test_advice_names_only_what_was_not_done(task: Translation) -> None:
    post = Translation(read_config(None, ["model.encoder_scheme=post_ln", "model.decoder_scheme=admin"]))
    assert post.advice() == "a scheme for depth (model.encoder_scheme = 'admin' or 'pre_ln')"
    assert not task.advice()
    assert math.isfinite(task.chance())


def test_one_stack_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"translation needs model\.encoder_layers and model\.decoder_layers"):
        Translation(read_config(None, ["model.encoder_layers=0"]))
