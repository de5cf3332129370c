"""SIGKILL at any moment: nothing half-written in place, and the same command again ends as if it had never been disturbed."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Commands, amount, contents, dice, rows

DATA_BUT = (".work",)
ORIGIN = ("checksums.json",)
"""Holds the checksum of config.json, which says what command made it."""


def undisturbed(bathy: Commands, *args: object) -> float:
    """Seconds of a run that nobody disturbs."""
    start = time.monotonic()
    assert bathy(*args).code == 0, args
    return time.monotonic() - start


def kill_until_done(
    bathy: Commands, args: list[str], seconds: float, kills: int, name: object, between: Callable[[], Any] = lambda: None
) -> None:
    """Start the command again and again, killed at random moments; the last start is left alone."""
    random = dice(name)
    for _ in range(kills):
        result = bathy(*args, kill_after=random.uniform(0, 0.9 * seconds))
        between()
        if result.code == 0:
            break
    assert bathy(*args).code == 0


@pytest.mark.parametrize("part", range(amount(1, 12)))
def test_prepare_resumes_where_it_was_killed(part: int, bathy: Commands, home: Path) -> None:
    seconds = undisturbed(bathy, "prepare", "config.toml", "--out", "whole")
    shutil.rmtree(home / "again", ignore_errors=True)
    extra = ["--set", "prepare.deduplicate=true"] if part % 2 else []
    if extra:
        assert bathy("prepare", "config.toml", "--out", "whole", *extra).code == 0

    def whole_or_not_there() -> None:
        if (home / "again/manifest.json").exists():
            assert bathy("verify", "again").code == 0

    args = ["prepare", "config.toml", "--out", "again", *extra]
    kill_until_done(bathy, args, seconds, amount(3, 6), ("prepare", part), whole_or_not_there)
    but = (*DATA_BUT, "manifest.json")
    assert contents(home / "again", but) == contents(home / "whole", but)
    assert not list((home / "again").rglob("*.tmp"))


@pytest.mark.parametrize("part", range(amount(1, 9)))
def test_training_resumes_bit_for_bit_with_its_logs(part: int, bathy: Commands, home: Path) -> None:
    shutil.rmtree(home / "killed", ignore_errors=True)
    args = ["train", "config.toml", "--run", "killed"]
    start = time.monotonic()
    shutil.rmtree(home / "timed", ignore_errors=True)
    assert bathy("train", "config.toml", "--run", "timed").code == 0
    seconds = time.monotonic() - start

    def saved_work_is_kept() -> None:
        found = sorted((home / "killed/checkpoints").glob("step_*"))
        if found:
            assert bathy("verify", "killed/checkpoints/" + found[-1].name).code == 0

    kill_until_done(bathy, args, seconds, amount(3, 9), ("train", part), saved_work_is_kept)
    weights = "checkpoints/step_00000024/model.safetensors"
    assert (home / "killed" / weights).read_bytes() == (home / "run" / weights).read_bytes()
    for log in ("metrics.jsonl", "readings.jsonl"):
        assert rows(home / "killed" / log) == rows(home / "run" / log), log
    assert not list((home / "killed").rglob("*.tmp"))


@pytest.mark.parametrize("part", range(amount(0, 4)))
def test_a_language_model_resumes_bit_for_bit(part: int, bathy: Commands, language: Path) -> None:
    """Prepare and train, killed in either."""
    for name in ("killed_lm_data", "killed_lm"):
        shutil.rmtree(language / name, ignore_errors=True)
    prepare = ["prepare", "language.toml", "--out", "killed_lm_data"]
    kill_until_done(bathy, prepare, undisturbed(bathy, *prepare[:-1], "timed_lm_data"), 4, ("lm prepare", part))
    but = (*DATA_BUT, "manifest.json")
    assert contents(language / "killed_lm_data", but) == contents(language / "lm_data", but)
    train = ["train", "language.toml", "--run", "killed_lm"]
    kill_until_done(bathy, train, 2.0, 5, ("lm train", part))
    weights = "checkpoints/step_00000024/model.safetensors"
    assert (language / "killed_lm" / weights).read_bytes() == (language / "lm_run" / weights).read_bytes()
    assert rows(language / "killed_lm/metrics.jsonl") == rows(language / "lm_run/metrics.jsonl")


DISTIL = "distil config.toml --teacher run --raw raw --set train.steps=8 --set train.monitor=false --set data.vocab=200"
DISTIL += " --set distil.shard=150 --set distil.workers=1 --set distil.beam=1 --set distil.max_ratio=0"


def distil(corpus: str, data: str, run: str) -> list[str]:
    return [*DISTIL.split(), "--corpus", corpus, "--set", f"data.path={data}", "--run", run]


@pytest.mark.parametrize("part", range(amount(1, 5)))
def test_a_student_is_the_same_whoever_killed_its_lessons(part: int, bathy: Commands, home: Path) -> None:
    """Killed while the teacher translates, while the text is prepared, or while the student trains."""
    parts = ("text", "data", "run")
    if not (home / "whole_run").exists():
        (home / "distil.seconds").write_text(str(undisturbed(bathy, *distil(*(f"whole_{part}" for part in parts)))))
    for name in parts:
        shutil.rmtree(home / f"killed_{name}", ignore_errors=True)
    seconds = float((home / "distil.seconds").read_text())
    kill_until_done(bathy, distil(*(f"killed_{part}" for part in parts)), seconds, amount(3, 6), ("distil", part))
    assert contents(home / "killed_text", (".work",)) == contents(home / "whole_text", (".work",))
    but = (*DATA_BUT, "manifest.json")
    assert contents(home / "killed_data", but) == contents(home / "whole_data", but)
    weights = "checkpoints/step_00000008/model.safetensors"
    assert (home / "killed_run" / weights).read_bytes() == (home / "whole_run" / weights).read_bytes()
    assert rows(home / "killed_run/metrics.jsonl") == rows(home / "whole_run/metrics.jsonl")


@pytest.mark.parametrize("part", range(amount(1, 5)))
def test_translating_leaves_nothing_half_written(part: int, bathy: Commands, home: Path) -> None:
    expected = (home / "test.out").read_bytes()
    args = ["translate", "run", "-i", "raw/test.de", "-o", "killed.out"]
    seconds = undisturbed(bathy, *args[:-1], "timed.out")
    random = dice("translate", part)
    for _ in range(amount(3, 8)):
        (home / "killed.out").unlink(missing_ok=True)
        bathy(*args, kill_after=random.uniform(0, 0.9 * seconds))
        assert not (home / "killed.out").exists() or (home / "killed.out").read_bytes() == expected
    assert bathy(*args).code == 0
    assert (home / "killed.out").read_bytes() == expected
    assert not list(home.glob(".killed.out*"))


@pytest.mark.parametrize("part", range(amount(0, 4)))
def test_an_export_is_whole_or_not_there(part: int, bathy: Commands, home: Path) -> None:
    random = dice("export", part)
    args = ["export", "run", "--to", "bathy", "--out", "killed_model"]
    shutil.rmtree(home / "timed_model", ignore_errors=True)
    seconds = undisturbed(bathy, *args[:-1], "timed_model")
    for _ in range(5):
        shutil.rmtree(home / "killed_model", ignore_errors=True)
        bathy(*args, kill_after=random.uniform(0, 0.9 * seconds))
        if (home / "killed_model").exists():
            assert contents(home / "killed_model", ORIGIN) == contents(home / "model", ORIGIN)
    shutil.rmtree(home / "killed_model", ignore_errors=True)
    assert bathy(*args).code == 0
    assert contents(home / "killed_model", ORIGIN) == contents(home / "model", ORIGIN)
    assert not list(home.glob(".killed_model*"))


@pytest.mark.parametrize("part", range(amount(0, 4)))
def test_a_corpus_is_whole_or_not_there(part: int, bathy: Commands, home: Path) -> None:
    args = ["corpus", "toy", "killed_raw", "--size", "3000", "--held-out", "12"]
    shutil.rmtree(home / "whole_raw", ignore_errors=True)
    seconds = undisturbed(bathy, "corpus", "toy", "whole_raw", *args[3:])
    shutil.rmtree(home / "killed_raw", ignore_errors=True)
    kill_until_done(bathy, args, seconds, 6, ("corpus", part))
    assert contents(home / "killed_raw") == contents(home / "whole_raw")


@pytest.mark.parametrize("part", range(amount(0, 5)))
def test_a_sweep_goes_through_every_point_whoever_dies(part: int, bathy: Commands, home: Path) -> None:
    """Also where a worker dies between taking a trial and its first sign of life."""
    grid = ["--grid", "optim.lr=1e-3,2e-3", "--set", "train.steps=8", "--set", "train.monitor=false"]
    args = ["sweep", "config.toml", *grid, "--heartbeat", "1", "--grace", "2", "--out"]
    if not (home / "whole_sweep/results.csv").exists():
        assert bathy(*args, "whole_sweep").code == 0
    shutil.rmtree(home / "killed_sweep", ignore_errors=True)
    random = dice("sweep", part)
    for _ in range(4):
        if bathy(*args, "killed_sweep", kill_after=random.uniform(0, 3)).code == 0:
            break
    assert bathy(*args, "killed_sweep").code == 0
    assert (home / "killed_sweep/results.csv").read_text() == (home / "whole_sweep/results.csv").read_text()


FAILING = [
    part
    for change in ("optim.lr=20", "train.steps=60", "train.keep_last=20", "train.divergence_window=6")
    for part in ("--set", change)
]


@pytest.mark.parametrize("part", range(amount(0, 3)))
def test_a_post_mortem_finds_the_same_whoever_killed_it(part: int, bathy: Commands, home: Path) -> None:
    if not (home / "failed").exists():
        assert bathy("train", "config.toml", "--run", "failed", *FAILING).code == 2
        shutil.copytree(home / "failed", home / "whole_failed")
        (home / "postmortem.seconds").write_text(str(undisturbed(bathy, "postmortem", "whole_failed")))
    shutil.rmtree(home / "killed_failed", ignore_errors=True)
    shutil.copytree(home / "failed", home / "killed_failed")
    seconds = float((home / "postmortem.seconds").read_text())
    kill_until_done(bathy, ["postmortem", "killed_failed"], seconds, 5, ("postmortem", part))
    killed, whole = (found(home / f"{name}_failed/postmortem/postmortem.json") for name in ("killed", "whole"))
    assert killed == whole and whole["verdict"]["cause"]
    assert contents(home / "failed") == contents(home / "killed_failed", ("postmortem", "report"))


def found(path: Path) -> dict[str, Any]:
    """What a post-mortem says, without what a clock says."""
    value = json.loads(path.read_text())
    for replay in value["replays"].values():
        del replay["seconds"]
    return {key: part for key, part in value.items() if key != "origin"}


@pytest.mark.parametrize("part", range(amount(0, 1)))
def test_a_ladder_is_climbed_whoever_dies(part: int, bathy: Commands, home: Path) -> None:
    rungs = ["--depths", "1,2", "--schemes", "pre_ln", "--rates", "1e-3", "--set", "train.steps=8"]
    args = ["ladder", "config.toml", *rungs, "--set", "train.monitor=false", "--out"]
    if not (home / "whole_ladder/ladder.json").exists():
        assert bathy(*args, "whole_ladder").code == 0
    shutil.rmtree(home / "killed_ladder", ignore_errors=True)
    kill_until_done(bathy, [*args, "killed_ladder"], 3.0, 3, ("ladder", part))
    losses = [
        [(row["layers"], row["loss"]) for row in json.loads((home / f"{name}_ladder/ladder.json").read_text())["runs"]]
        for name in ("killed", "whole")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 2
