"""A ladder is its runs: rungs are computed from rows, and a small one climbs, resumes and draws its page."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bathy.cli import app
from bathy.errors import ConfigError, SchemeError
from bathy.lab.ladder.ladder import Ladder, numbers
from bathy.lab.ladder.publish import BLOCK, refreshed
from bathy.lab.ladder.results import TRAINS, rungs, trains, transfers
from bathy.lab.reproduce.folder import plain
from bathy.lab.runs import read_run

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


def test_transfer_is_the_ratio_of_best_rates_and_what_the_shallow_one_costs() -> None:
    rows = [row("a", 6, 1e-3, 2.0), row("a", 6, 3e-3, 2.5), row("a", 24, 1e-3, 2.5), row("a", 24, 3e-3, 2.1)]
    (moved,) = transfers(rungs(rows, CHANCE), rows, CHANCE)
    assert (moved.shallow, moved.deep) == (6, 24) and moved.factor == pytest.approx(3.0) and moved.lost == pytest.approx(0.4)
    failed = [*rows[:2], row("a", 24, 1e-3, 3.9), rows[3]]
    assert math.isinf(transfers(rungs(failed, CHANCE), failed, CHANCE)[0].lost)
    unknown = [*rows[:2], rows[3]]
    assert math.isnan(transfers(rungs(unknown, CHANCE), unknown, CHANCE)[0].lost)
    assert transfers(rungs(rows[:2], CHANCE), rows[:2], CHANCE) == []


def test_a_run_that_has_not_ended_says_nothing_of_its_rate() -> None:
    rows = [row("a", 6, 1e-3, 2.0), row("a", 6, 1e-3, None, 2, "running"), row("b", 6, 1e-3, None, 1, "waiting")]
    (rung,) = rungs(rows, CHANCE)
    assert (rung.scheme, rung.runs, rung.largest_rate) == ("a", 1, 1e-3)


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


def test_a_ladder_grows_in_its_folder_and_is_resumed_from_what_is_published(toy_data: Path, tmp_path: Path) -> None:
    config, document, out = tmp_path / "c.toml", tmp_path / "docs.md", tmp_path / "mine"
    model = "width = 16\nffn = 16\nheads = 2\n"
    train = "tokens = 128\nsteps = 3\nsave_every = 3\nlog_every = 1\n"
    config.write_text(f"[data]\npath = '{toy_data}'\n[model]\n{model}[optim]\nwarmup = 2\n[train]\n{train}")

    def climb(out: Path, schemes: str, rates: str) -> list[str]:
        options = ["--depths", "1", "--schemes", schemes, "--rates", rates, "--out", str(out), "--publish", str(document)]
        done = CliRunner().invoke(app, ["ladder", str(config), *options])
        assert done.exit_code == 0, done.output
        runs = json.loads((out / "ladder.json").read_text())["runs"]
        assert all(run["seconds"] > 0 and run["state"] == "trained" for run in runs)
        return [f"{run['scheme']} {run['lr']:g}" for run in runs]

    assert climb(out, "pre_ln,admin", "1e-3") == ["pre_ln 0.001", "admin 0.001"]
    assert climb(out, "post_ln", "2e-3") == ["post_ln 0.002", "pre_ln 0.001", "admin 0.001"]
    elsewhere = tmp_path / "elsewhere" / "mine"
    assert climb(elsewhere, "admin", "1e-3,2e-3") == ["post_ln 0.002", "pre_ln 0.001", "admin 0.001", "admin 0.002"]
    assert len([*elsewhere.glob("*/checkpoints")]) == 1, "three of the four came from the page's folder"
    options = ["--depths", "1", "--schemes", "admin", "--rates", "1e-3", "--publish", str(document), "--set", "train.steps=4"]
    refused = CliRunner().invoke(app, ["ladder", str(config), *options, "--out", str(tmp_path / "third" / "mine")])
    assert "keeps runs that differ in more than their grid: train.steps (" in str(refused.exception)
    assert not (tmp_path / "third").exists(), "nothing is trained that the page would take for its own"
    text = document.read_text()
    assert text == refreshed(document) and text.count("<!-- ladder: mine -->") == 1 and "![Best validation loss" in text
    assert {path.suffix for path in (tmp_path / "docs/mine").iterdir()} == {".csv", ".json", ".svg", ""}


def test_a_ladder_on_your_own_text_is_one_command(tmp_path: Path) -> None:
    text, config, out = tmp_path / "mine.txt", tmp_path / "c.toml", tmp_path / "ladder"
    text.write_text("Deep calleth unto deep at the noise of thy waterspouts.\n" * 40, encoding="utf-8")
    config.write_text(
        "[task]\nkind = 'language'\n[prepare]\nvocabulary = 'character'\n[data]\npath = 'nowhere'\n"
        "[model]\ndecoder_layers = 1\nwidth = 16\nffn = 16\nheads = 2\ncontext = 16\n[optim]\nwarmup = 2\n"
        "[train]\ntokens = 64\nsteps = 3\n"
    )
    options = ["--raw", str(text), "--depths", "1", "--schemes", "admin", "--rates", "1e-3", "--out", str(out)]
    planned = CliRunner().invoke(app, ["ladder", str(config), *options, "--plan"])
    assert planned.exit_code == 0 and "core-hours in all" in planned.output, planned.output
    done = CliRunner().invoke(app, ["ladder", str(config), *options])
    assert done.exit_code == 0 and "run 1 of 1: decoder_layers=1" in done.stderr, done.output
    assert len(json.loads((out / "ladder.json").read_text())["runs"]) == 1
    text.write_text("Another text altogether, and not that one.\n" * 40, encoding="utf-8")
    refused = CliRunner().invoke(app, ["ladder", str(config), *options])
    assert isinstance(refused.exception, ConfigError) and "the text; choose a different" in str(refused.exception)


def test_runs_of_other_settings_are_refused_not_taken_for_the_ladders(toy_data: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    model = "width = 16\nffn = 16\nheads = 2\n"
    config.write_text(f"[data]\npath = '{toy_data}'\n[model]\n{model}[optim]\nwarmup = 2\n[train]\ntokens = 128\nsteps = 2\n")
    out = ["--out", str(tmp_path / "out")]
    for command in (["ladder", str(config), "--depths", "1", "--schemes", "admin", "--rates", "1e-3", *out],
                    ["sweep", str(config), "--grid", "optim.lr=1e-3", *out]):  # fmt: skip
        assert CliRunner().invoke(app, [*command, "--set", "model.norm=rms"]).exit_code == 0
        files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("outcome.json")}
        refused = CliRunner().invoke(app, [*command, "--set", "train.steps=3"])
        assert isinstance(refused.exception, ConfigError)
        assert "train.steps, model.norm; choose a different" in str(refused.exception)
        assert files == {path: path.read_bytes() for path in files}


PAGE = Path(__file__).parents[2] / "docs/ladder.md"


def test_the_page_follows_from_the_committed_ladders() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert refreshed(PAGE) == text, "write it with: bathy ladder … --publish docs/ladder.md"
    assert sorted(match[2] for match in BLOCK.finditer(text)) == sorted(
        path.parent.name for path in PAGE.with_suffix("").glob("*/ladder.json")
    )


@pytest.mark.parametrize("found", sorted(PAGE.with_suffix("").glob("*/ladder.json")), ids=lambda path: path.parent.name)
def test_every_run_of_a_committed_ladder_has_its_outcome(found: Path) -> None:
    ladder = json.loads(found.read_text())
    outcomes = [read_run(path.parent).outcome for path in found.parent.glob("runs/*/outcome.json")]
    losses = sorted(run["loss"] for run in ladder["runs"] if run["loss"] is not None)
    assert losses == sorted(outcome.loss for outcome in outcomes if math.isfinite(outcome.loss))
    assert plain([asdict(rung) for rung in rungs(ladder["runs"], ladder["chance"])]) == ladder["rungs"]
