"""Every benchmark runs, as a miniature; what it measures is never asserted."""

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bathy import SCHEMES, TransformerConfig
from bathy.cli import app
from bathy.lab.bench import BENCHES, data, distil, interleaved, load, purpose, ratio
from bathy.lab.bench.apart import Apart
from bathy.lab.bench.copying import Trial
from bathy.lab.bench.language.study import BASE, Study, Trained, at_best, summary
from bathy.lab.bench.postmortem.design import CAUSES


def small_trial(encoder: str, decoder: str, layers: tuple[int, int], **settings: Any) -> Trial:
    """A trial of at most three layers of width 16."""
    return Trial(encoder, decoder, (min(layers[0], 3), min(layers[1], 3)), **settings | {"width": 16})


def small_bert() -> dict[str, int]:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    return {**sizes, "vocab_size": 1000}


def small_study() -> Study:
    """Two shapes of width 16 at two rates."""
    small = {"model.decoder_layers": 1, "model.width": 16, "model.ffn": 16, "train.tokens": 128}
    return Study("small", {"one layer": {}, "two layers": {"model.decoder_layers": 2}}, (1e-3, 2e-3), {**BASE, **small})


CONFIGS = Path(__file__).parents[2] / "configs"
SMALL: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "width": 16, "ffn": 16, "heads": 2}
MINIATURES: dict[str, dict[str, Any]] = {
    "admin": {"SIZES": {"2L-2L": SMALL}, "VOCAB": 50, "TOKENS": 64},
    "audit": {"SCHEMES": {name: SCHEMES[name] for name in ("post_ln", "deepnorm")}, "DEPTHS": {"encoder-only": (8, 0)}},
    "diagnosis": {"Trial": small_trial, "SEEDS": (0, 1, 2)},
    "foreign": {"LAYERS": 2, "WIDTH": 16, "HEADS": 2, "ROWS": 4},
    "monitor": {"Trial": small_trial},
    "postmortem": {"CAUSES": {"corrupt batch": CAUSES["corrupt batch"]}},
    "predict": {},
    "ring": {"SIZES": {"1 layer": (1, 32)}, "UPDATES": 4, "SAVES": 2},
    "sites": {"BASE": small_bert()},
    "prepare": {"QUICK_PAIRS": (60, 120), "MERGES": 50},
    "lm": {"FORMATS": ("float32",)},
    "translate": {"MODELS": {"2L-2L": TransformerConfig(vocab=1000, **SMALL)}, "BATCHES": {1: 2, 5: 2}, "LENGTH": 5},
    "serve": {"SHAPE": SMALL, "VOCAB": 300, "LENGTH": 5, "CLIENTS": {1: 3, 16: 20}},
    "distil": {"CONFIGS": {role: CONFIGS / f"multi30k_{role}.toml" for role in ("teacher", "student")}},
    "depth": {"LAYERS": 1, "WIDTH": 16, "VOCAB": 300, "QUICK_STEPS": 4, "LOG": 2},
    "train": {
        "SETTINGS": {"model.encoder_layers": 1, "model.width": 16, "model.heads": 2, "model.ffn": 16, "train.tokens": 128},
        "DEPTHS": (1, 2),
        "VOCAB": 300,
    },
    "lm-parts": {"PARTS": small_study()},
    "lm-deep": {"DEEP": small_study()},
}
"""What makes a benchmark small, besides --quick: its module's own constants."""


def finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_runs_and_writes_its_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(BENCHES[name])
    for constant, value in MINIATURES.get(name, {}).items():
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr(data, "PAIRS", 300)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", name, "--quick", "--out", "out.json"])
    assert result.exit_code == 0, (result.output, result.exception)
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert written["benchmark"] == name and written["result"] and finite(written["result"])
    assert written["versions"]["torch"] and written["command"]


def test_a_rate_is_chosen_on_the_first_half_and_the_second_is_reported() -> None:
    study = small_study()
    one, two = study.variants
    found = [
        Trained(one, 1e-3, 1, 2.0, 2.5, True, "", 10),
        Trained(two, 1e-3, 1, 1.8, 2.0, False, "stopped", 20),
        Trained(one, 2e-3, 1, 2.1, 1.0, True, "", 10),  # better on the half that chooses nothing
        Trained(two, 2e-3, 1, 1.9, 2.2, True, "", 20),
        Trained(one, 1e-3, 2, 2.2, 2.7, True, "", 10),
        Trained(two, 2e-3, 2, 2.0, 2.0, True, "", 20),
    ]
    assert {seed: run.rate for seed, run in at_best(found, one).items()} == {1: 1e-3, 2: 1e-3}
    row = summary(found, two, study)
    assert (row["rate"], row["seeds"], row["trains"], row["parameters"]) == (2e-3, 2, 2, 20)
    assert row["loss"] == pytest.approx(2.1) and row["gain"] == pytest.approx((0.3 + 0.7) / 2)


def test_actions_take_turns_after_one_uncounted_round() -> None:
    calls: list[str] = []
    ticks = iter(range(100))
    seconds = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, clock=lambda: next(ticks))
    assert calls == ["a", "b"] * 4
    assert seconds == {"a": [1, 1, 1], "b": [1, 1, 1]}


def test_a_peer_in_a_process_of_its_own_measures_itself_and_its_end_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with Apart("unittest.mock", "MagicMock") as peer:
        seconds = interleaved({"peer": peer}, rounds=2, clock=lambda: 1e9)
    assert 0 <= seconds["peer"][-1] == peer.seconds < 1e6 and peer.memory > 1
    with Apart("operator", "methodcaller", "upper") as broken, pytest.raises(RuntimeError, match="ended with code 1"):
        broken()
    assert "TypeError" in capfd.readouterr().err


def test_a_ratio_is_a_median_within_its_interval() -> None:
    median, low, high = ratio([2.0, 2.2, 1.8, 2.0, 9.0] * 5, [1.0] * 25)
    assert median == 2.0
    assert 1.8 <= low <= 2.0 <= high <= 2.2


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_is_listed_with_its_purpose(name: str) -> None:
    assert callable(load(name).run)
    assert purpose(name)


def test_the_list_is_shown() -> None:
    shown = CliRunner().invoke(app, ["bench", "--list"]).output
    assert all(name in shown for name in BENCHES)


def test_a_student_is_judged_by_what_was_expected_of_it() -> None:
    reference = ["ein Hund läuft im Garten", "zwei Kinder spielen Ball", "eine Frau liest ein Buch"]
    worse, worst = [line.replace("ein", "kein") for line in reference], ["nichts davon"] * 3
    systems = {"teacher": reference, "plain 1": worst, "plain 2": worse, "distilled 1111": reference, "distilled 2": worse}
    systems |= {"distilled 1": reference, "int8": worse}
    found = distil.quality(systems, reference, "de")
    chrf = {row["system"]: row["score"] for row in found["scores"] if row["metric"] == "chrf"}
    assert chrf["teacher"] == 100 and found["means"]["plain"]["chrf"]["mean"] == pytest.approx(
        (chrf["plain 1"] + chrf["plain 2"]) / 2
    )
    assert {(row["first"], row["second"]) for row in found["pairs"]} == {
        ("plain 1", "distilled 1"), ("plain 2", "distilled 2"), ("distilled 1111", "int8"),
    }  # fmt: skip

    def verdict(plain: float, distilled: float, *faster: float) -> list[bool]:
        means = {kind: {"chrf": {"mean": mean}} for kind, mean in (("plain", plain), ("distilled", distilled))}
        speed = {str(i): {"student": {"times as fast": {"median": times}}} for i, times in enumerate(faster)}
        return list(distil.judge({"scores": found["scores"], "means": means, "speed": speed}).values())

    assert verdict(98.0, 99.0, 2.0, 3.0) == [True, True, True]
    assert verdict(98.9, 98.9, 2.0, 1.9) == [False, False, False]
