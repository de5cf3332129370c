"""Sweeps: every point once, in a folder of its own; a second call does only what is missing; results as table and picture."""

import csv
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bathy.errors import ConfigError, InUse
from bathy.lab.runs import Outcome
from bathy.lab.sweep import Grid, Sweep, changes, connect, folder_name, work
from bathy.lab.sweep.grid import Point
from bathy.lab.sweep.results import report, rows
from bathy.lab.sweep.study import fail_silent_trials

AXES = ["model.encoder_scheme+model.decoder_scheme=post_ln,admin", "optim.lr=1e-4,2e-4", "optim.beta2=0.99,0.999"]


class Runner:
    """Notes what it was asked to run; Post-LN at the higher rate diverges; a named folder fails on its first visit."""

    def __init__(self, fails: str = "") -> None:
        self.folders: list[str] = []
        self.fails = fails

    def __call__(self, point: Point, folder: Path) -> Outcome:
        self.folders.append(folder.name)
        if folder.name == self.fails and self.folders.count(folder.name) == 1:
            raise ConfigError("no such data")
        stopped = "post_ln" in point.values() and point["optim.lr"] == "2e-4"
        loss = 3 + float(point["optim.beta2"])
        return Outcome(loss, 2.718**loss, stopped, "diverged" if stopped else "", [(1, 5.0), (2, loss)])


def test_a_grid_is_every_combination_and_joined_settings_move_together() -> None:
    grid = Grid.parse(AXES)
    assert len(grid.points) == 8
    assert changes(grid.points[0]) == [
        "model.encoder_scheme=post_ln", "model.decoder_scheme=post_ln", "optim.lr=1e-4", "optim.beta2=0.99",
    ]  # fmt: skip
    assert folder_name(grid.points[0]) == "encoder_scheme=post_ln,lr=1e-4,beta2=0.99"
    assert len({folder_name(point) for point in grid.points}) == 8


def test_folders_with_equal_keys_keep_their_sections() -> None:
    assert folder_name({"model.norm": "a b", "optim.norm": "1"}) == "model.norm=a_b,optim.norm=1"


@pytest.mark.parametrize("text", ["optim.lr", "lr=1", "optim.lr=", "optim.lr=1,1", "optim.lr=1"])
def test_a_malformed_axis_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--grid"):
        Grid.parse(["optim.lr=2", text])
    with pytest.raises(ConfigError, match="at least one --grid"):
        Grid.parse([])


def test_every_point_runs_once_and_a_larger_grid_adds_what_is_missing(tmp_path: Path) -> None:
    run = Runner()
    work(Sweep(Grid.parse(AXES[1:]), tmp_path), run)
    assert len(set(run.folders)) == len(run.folders) == 4
    more = Grid.parse(["optim.lr=1e-4,2e-4,3e-4", AXES[2]])
    work(Sweep(more, tmp_path), run)
    assert sorted(run.folders) == sorted(map(folder_name, more.points))


def test_a_point_that_two_workers_queued_at_once_runs_once(tmp_path: Path) -> None:
    sweep, run = Sweep(Grid.parse(AXES[1:]), tmp_path), Runner()
    study = connect(sweep)
    for point in [*sweep.grid.points, *sweep.grid.points]:
        study.enqueue_trial({}, user_attrs={"point": point})
    work(sweep, run)
    assert len(set(run.folders)) == len(run.folders) == 4
    assert [row["state"] for row in rows(study, sweep.grid)] == ["trained"] * 4


def test_a_failed_point_is_run_again_by_the_next_call(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sweep = Sweep(Grid.parse(AXES[1:]), tmp_path)
    run = Runner(fails=folder_name(sweep.grid.points[1]))
    with pytest.raises(ConfigError, match="no such data"):
        work(sweep, run)
    assert capfd.readouterr().err == "", "the error speaks for itself"
    work(sweep, run)
    assert [row["state"] for row in rows(connect(sweep), sweep.grid)] == ["trained"] * 4


def test_a_worker_that_died_before_its_first_heartbeat_is_taken_over(tmp_path: Path) -> None:
    """A trial that was taken and never heard of again: Optuna alone would leave it running for ever."""
    sweep, run = Sweep(Grid.parse(AXES[1:]), tmp_path, heartbeat=1, grace=2), Runner()
    study = connect(sweep)
    study.enqueue_trial({}, user_attrs={"point": sweep.grid.points[0]})
    with pytest.warns(UserWarning, match="Heartbeat"):
        study.ask()  # and the process is gone
    work(sweep, run, poll=0.1)
    assert sorted(run.folders) == sorted(map(folder_name, sweep.grid.points))
    assert [row["state"] for row in rows(study, sweep.grid)] == ["trained"] * 4


def test_a_worker_that_sends_heartbeats_keeps_its_trial(tmp_path: Path) -> None:
    sweep, silent = Sweep(Grid.parse(AXES[1:]), tmp_path, heartbeat=1, grace=2), dict[int, float]()
    study = connect(sweep)
    with pytest.warns(UserWarning, match="Heartbeat"):
        trial = study.ask()
    study._storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]
    for _ in range(2):
        fail_silent_trials(study, 0.0, silent)
    assert study.trials[0].state.name == "RUNNING" and not silent


def test_two_workers_never_take_one_trial(tmp_path: Path) -> None:
    """SQLite locks no rows: both read that a trial waits before either writes that it runs."""
    from optuna.trial import TrialState

    sweep = Sweep(Grid.parse(AXES), tmp_path)
    study = connect(sweep)
    for point in sweep.grid.points * 4:
        study.enqueue_trial({}, user_attrs={"point": point})
    trials = [trial._trial_id for trial in study.get_trials()]
    together = threading.Barrier(2)

    def take_all(_: int) -> list[bool]:
        storage = connect(sweep)._storage
        return [together.wait() >= 0 and storage.set_trial_state_values(trial, TrialState.RUNNING) for trial in trials]

    with ThreadPoolExecutor(2) as workers:
        one, other = workers.map(take_all, range(2))
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_a_point_whose_folder_is_in_use_is_left_to_whoever_uses_it(tmp_path: Path) -> None:
    sweep, run = Sweep(Grid.parse(AXES[1:]), tmp_path, heartbeat=1, grace=2), Runner()

    def in_use_once(point: Point, folder: Path) -> Outcome:
        outcome = run(point, folder)
        if len(run.folders) == 1:
            raise InUse("in use by another process")
        return outcome

    work(sweep, in_use_once, poll=0.1)
    assert run.folders[0] == run.folders[-1], "the others came first"
    assert [row["state"] for row in rows(connect(sweep), sweep.grid)] == ["trained"] * 4


def test_a_worker_that_was_taken_for_dead_ends_its_run_and_goes_on(tmp_path: Path) -> None:
    """A machine that slept: another worker has failed its trial; the outcome lies in the folder and is not lost."""
    from optuna.trial import TrialState

    sweep, run = Sweep(Grid.parse(AXES[1:]), tmp_path), Runner()
    study = connect(sweep)

    def slow_once(point: Point, folder: Path) -> Outcome:
        if not run.folders:
            study._storage.set_trial_state_values(study.get_trials(states=(TrialState.RUNNING,))[0]._trial_id, TrialState.FAIL)
        return run(point, folder)

    work(sweep, slow_once)
    assert len(run.folders) == 5 and len(set(run.folders)) == 4
    assert [row["state"] for row in rows(study, sweep.grid)] == ["trained"] * 4


def test_a_grid_with_other_words_joins_the_study(tmp_path: Path) -> None:
    first, second = (
        Sweep(Grid.parse([f"model.norm={words}", "optim.beta2=0.99"]), tmp_path) for words in ("layer,rms", "scale")
    )
    for sweep in (first, second):
        work(sweep, lambda point, folder: Outcome(1.0, 2.0))
    assert [row["model.norm"] for row in rows(connect(second), second.grid)] == ["scale"]
    assert [row["model.norm"] for row in rows(connect(second))] == ["layer", "rms", "scale"]


def test_results_are_rows_and_a_picture(tmp_path: Path) -> None:
    sweep = Sweep(Grid.parse(AXES), tmp_path)
    work(sweep, Runner())
    report(sweep)
    found = rows(connect(sweep), sweep.grid)
    assert [row["state"] for row in found].count("stopped") == 2
    with (tmp_path / "results.csv").open() as file:
        assert [row["folder"] for row in csv.DictReader(file)] == [folder_name(point) for point in sweep.grid.points]
    assert (tmp_path / "heat_map.svg").read_text().count(">failed<") == 2


URLS = ["postgresql://me:secret@localhost:1/none", "postgresql://me:secret@localhost:x/none", "postgresql:/me:secret@localhost",
        "nonsense://me:secret@h", "://me:secret@h", "me:secret@h", "postgresql://me:s%65cret/secret@localhost:1/x"]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_a_storage_that_cannot_be_used_is_one_line_without_the_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used") as error:
        connect(Sweep(Grid.parse(AXES), tmp_path, url))
    assert "secret" not in str(error.value) and "\n" not in str(error.value)
