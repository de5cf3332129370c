"""A ladder is its runs: rungs are computed from rows, and a small one climbs, resumes and draws its page."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bathy.cli import app
from bathy.errors import ConfigError, SchemeError
from bathy.lab.ladder.ladder import Ladder, numbers
from bathy.lab.ladder.results import TRAINS, rungs, trains, transfer

CHANCE = 4.0


def row(scheme: str, layers: int, lr: float, loss: float | None, seed: int = 1, state: str = "trained") -> dict[str, object]:
    return {"scheme": scheme, "layers": layers, "lr": lr, "seed": seed, "state": state, "loss": loss, "seconds": 1800.0}


def test_a_run_trains_by_the_rule_that_was_fixed_before() -> None:
    assert trains(row("a", 6, 1e-3, TRAINS * CHANCE), CHANCE)
    assert not trains(row("a", 6, 1e-3, TRAINS * CHANCE + 1e-6), CHANCE)
    assert not trains(row("a", 6, 1e-3, 1.0, state="stopped"), CHANCE)
    assert not trains(row("a", 6, 1e-3, None), CHANCE)


def test_a_rung_takes_the_best_rate_at_which_every_seed_trains() -> None:
    rows = [
        row("a", 6, 1e-3, 2.0, 1), row("a", 6, 1e-3, 2.2, 2),
        row("a", 6, 3e-3, 1.0, 1), row("a", 6, 3e-3, 3.9, 2),  # one seed fails
        row("a", 6, 3e-4, 2.5, 1), row("a", 6, 3e-4, 2.5, 2),
    ]  # fmt: skip
    (rung,) = rungs(rows, CHANCE)
    assert (rung.best_rate, rung.largest_rate, rung.seeds, rung.trained, rung.runs) == (1e-3, 1e-3, 2, 5, 6)
    assert rung.loss == pytest.approx(2.1) and rung.deviation == pytest.approx(math.sqrt(0.02))
    assert rung.hours == pytest.approx(3.0)


def test_a_depth_at_which_nothing_trains_says_so() -> None:
    (rung,) = rungs([row("a", 48, 1e-3, 3.9), row("a", 48, 3e-3, None, state="stopped")], CHANCE)
    assert rung.largest_rate == 0 and math.isinf(rung.loss) and rung.trained == 0


def test_transfer_is_the_ratio_of_best_rates() -> None:
    rows = [row("a", 6, 1e-3, 2.0), row("a", 6, 3e-3, 2.5), row("a", 24, 1e-3, 2.5), row("a", 24, 3e-3, 2.0)]
    assert transfer(rungs(rows, CHANCE), "a") == pytest.approx(3.0)
    assert math.isnan(transfer(rungs(rows[:2], CHANCE), "a"))


def test_bad_options_are_one_line(tmp_path: Path) -> None:
    for text in ("", "6,x", "0", "-3"):
        with pytest.raises(ConfigError, match="--depths is"):
            numbers(text, "depths")
    with pytest.raises(SchemeError, match="Did you mean admin"):
        Ladder(tmp_path / "c.toml", (6,), ("admn",), ("1e-3",), (1,), tmp_path)


def test_a_small_ladder_climbs_and_draws(toy_data: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    model = "width = 16\nffn = 16\nheads = 2\n"
    config.write_text(
        f"[data]\npath = '{toy_data}'\n[model]\n{model}[optim]\nwarmup = 2\n[train]\ntokens = 128\nsteps = 3\nsave_every = 3\n"
    )
    options = ["--depths", "1,2", "--schemes", "pre_ln,admin", "--rates", "1e-3", "--out", str(tmp_path / "ladder")]
    done = CliRunner().invoke(app, ["ladder", str(config), *options])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "ladder" / "ladder.json").read_text())
    assert [(rung["scheme"], rung["layers"], rung["runs"]) for rung in found["rungs"]] == [
        ("pre_ln", 1, 1), ("admin", 1, 1), ("pre_ln", 2, 1), ("admin", 2, 1),
    ]  # fmt: skip
    assert all(run["loss"] > 0 and run["seconds"] > 0 for run in found["runs"]) and found["trains"] == TRAINS
    assert (tmp_path / "ladder" / "ladder.csv").read_text().count("\n") == 5
    assert "The depth ladder" in (tmp_path / "ladder" / "report.html").read_text()
    times = [path.stat().st_mtime_ns for path in sorted((tmp_path / "ladder").glob("*/metrics.jsonl"))]
    assert CliRunner().invoke(app, ["ladder", str(config), *options]).exit_code == 0
    assert times == [path.stat().st_mtime_ns for path in sorted((tmp_path / "ladder").glob("*/metrics.jsonl"))]
    planned = CliRunner().invoke(app, ["ladder", str(config), *options, "--plan"])
    assert planned.exit_code == 0 and "core-hours in all" in planned.output
