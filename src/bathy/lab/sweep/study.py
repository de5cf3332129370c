"""A sweep: Optuna's storage holds the plan and who works on what; any number of workers on any machines go through it.

A worker that dies stops its heartbeat, or never sends one; after the grace period another one puts its point back into
the queue and resumes the run in the point's own folder. Every act is safe to repeat: what two workers do twice at once is
dropped, and one that was taken for dead (a machine that slept) ends its run, which the study reads from its folder.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bathy.errors import ConfigError, InUse, TrainingError, keep_address_secret, require
from bathy.lab.runs import Outcome
from bathy.lab.sweep.grid import Grid, Point, folder_name

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, TrialState

Runner = Callable[[Point, Path], Outcome]
"""Trains the run of a point in its folder, from its last checkpoint where there is one."""


@dataclass(frozen=True)
class Sweep:
    """What workers share: where the study is kept, and the grid."""

    grid: Grid
    out: Path
    """Folder of the run folders and results."""
    storage: str = ""
    """SQLAlchemy URL; empty: an SQLite file in `out`."""
    name: str = "sweep"
    heartbeat: int = 30
    """Seconds between signs of life."""
    grace: int = 120
    """Seconds without one after which a worker counts as dead."""

    @property
    def url(self) -> str:
        """Where the study is kept."""
        return self.storage or f"sqlite:///{self.out / 'sweep.db'}"

    def folder(self, point: Point) -> Path:
        """The run folder of a point."""
        return self.out / folder_name(point)


Silent = dict[int, float]
"""Running trials without a heartbeat, and when this worker first saw them so."""
RETRY_AFTER = (0.2, 1.0)
"""Seconds: workers that start together on an empty database make its tables at the same moment, and one of them fails."""


def connect(sweep: Sweep) -> Study:
    """The sweep's study, made if it is not there."""
    shown(sweep.url)
    optuna = require("optuna", "sweep")
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a warning would say with a traceback what the error says itself
    sweep.out.mkdir(parents=True, exist_ok=True)
    url = sweep.url.replace("postgresql://", "postgresql+psycopg://")
    engine = {} if url.startswith("sqlite") else {"pool_pre_ping": True}
    for wait in (*RETRY_AFTER, None):
        try:
            with _quiet():
                storage = _storage_class()(
                    url, engine_kwargs=engine, heartbeat_interval=sweep.heartbeat, grace_period=sweep.grace
                )
                return optuna.create_study(storage=storage, study_name=sweep.name, load_if_exists=True)
        except _connection_errors() as error:
            if wait is None:
                raise ConfigError(_storage_fault(sweep, error)) from error
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def _storage_class() -> type[RDBStorage]:
    """Optuna's storage, from which one worker at a time takes a trial: SQLite locks no rows, and two may take the same."""
    from filelock import FileLock
    from optuna.storages import RDBStorage

    class Storage(RDBStorage):
        def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
            place = self.engine.url
            alone = FileLock(f"{place.database}.lock") if place.drivername.startswith("sqlite") and place.database else None
            with alone or nullcontext():
                return super().set_trial_state_values(trial_id, state, values)

    return Storage


def work(sweep: Sweep, run: Runner, poll: float = 1.0) -> None:
    """Run points until none is left, also those of workers that die meanwhile."""
    study = connect(sweep)
    silent: Silent = {}
    try:
        while (state := next_state(study, sweep, silent)) != "done":
            if state == "waiting":
                _run_next(study, sweep, run)
            else:
                time.sleep(poll)
    except _database_errors() as error:
        raise TrainingError(f"{_storage_fault(sweep, error)}; run the same command to resume") from error


def next_state(study: Study, sweep: Sweep, silent: Silent) -> str:
    """waiting: there is a point to take; running: others have the rest; done. Points without a live trial are put back."""
    from optuna.storages import fail_stale_trials
    from optuna.trial import TrialState

    with _quiet():
        fail_stale_trials(study)
    fail_silent_trials(study, sweep.grace, silent)
    alive = [_point(trial) for trial in study.get_trials(deepcopy=False) if _alive(trial)]
    for point in sweep.grid.points:
        if point not in alive:
            study.enqueue_trial({key: _number(value) for key, value in point.items()}, user_attrs={"point": point})
    states = [trial.state for trial in study.get_trials(deepcopy=False)]
    return "waiting" if TrialState.WAITING in states else "running" if TrialState.RUNNING in states else "done"


def fail_silent_trials(study: Study, grace: float, silent: Silent) -> None:
    """Fail the trials that have been running for the grace period, as far as this worker has seen, without any heartbeat.

    Optuna sends the first one a moment after it takes a trial, and never fails one that sent none: without this a worker
    that dies in that moment keeps its point for ever.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState
    from sqlalchemy import text

    running = {trial._trial_id for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))}
    storage: Any = study._storage
    with storage._backend.engine.connect() as connection:
        running -= set(connection.execute(text("SELECT trial_id FROM trial_heartbeats")).scalars())
    for gone in silent.keys() - running:
        del silent[gone]
    for trial in running:
        if time.monotonic() - silent.setdefault(trial, time.monotonic()) > grace:
            with suppress(UpdateFinishedTrialError):  # another worker was quicker
                storage.set_trial_state_values(trial, state=TrialState.FAIL)


def _run_next(study: Study, sweep: Sweep, run: Runner) -> None:
    """Take the next point; leave it where another worker is in its folder, or where this one was taken for dead meanwhile."""
    from optuna import TrialPruned
    from optuna.exceptions import UpdateFinishedTrialError

    left = []

    def objective(trial: Trial) -> float:
        try:
            return _objective(trial, sweep, run)
        except InUse:
            trial.set_user_attr("skipped", "another worker is in its folder")
            left.append(sweep.heartbeat)
        except UpdateFinishedTrialError:
            left.append(0)
        raise TrialPruned

    try:
        study.optimize(objective, n_trials=1)
    except ValueError:  # Optuna's word for a trial that another worker has ended
        if not left:
            raise
    time.sleep(sum(left))


def _objective(trial: Trial, sweep: Sweep, run: Runner) -> float:
    """Validation loss of the trial's run; a run that was stopped for divergence counts as pruned, with the reason."""
    from optuna import TrialPruned

    point = _point(trial)
    if point is None or _taken(trial, point):
        trial.set_user_attr("skipped", "another worker has this point")
        raise TrialPruned
    _suggest(trial, point, sweep)
    folder = sweep.folder(point)
    trial.set_user_attr("folder", folder.name)
    outcome = run(point, folder)
    for name, value in outcome.row().items():
        trial.set_user_attr(name, value)
    for step, loss in outcome.curve:
        trial.report(loss, step)
    if outcome.stopped or not math.isfinite(outcome.loss):
        raise TrialPruned
    return outcome.loss


def _point(trial: Trial | FrozenTrial) -> Point | None:
    """The point that was put into the queue; nothing for a trial that the sampler made up when the queue was empty."""
    return trial.user_attrs.get("point")


def _alive(trial: FrozenTrial) -> bool:
    """Whether the trial waits, runs or has ended well: not failed, and not one that left its point to another."""
    return trial.state.name != "FAIL" and "skipped" not in trial.user_attrs


def _taken(trial: Trial, point: Point) -> bool:
    """Whether an earlier living trial has the same point."""
    others = trial.study.get_trials(deepcopy=False)
    return any(_alive(other) and other.number < trial.number and _point(other) == point for other in others)


def _suggest(trial: Trial, point: Point, sweep: Sweep) -> None:
    """Tell Optuna the parameters, for its dashboard: numbers as numbers, words as one of their axis.

    Optuna takes no other words than a study began with; those of a grid that grew stand in the trial's attributes alone.
    """
    for key, value in point.items():
        number = _number(value)
        with suppress(ValueError):
            if isinstance(number, float):
                trial.suggest_float(key, number, number)
            elif value in sweep.grid.axes[key]:
                trial.suggest_categorical(key, sweep.grid.axes[key])


def _number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def _quiet() -> warnings.catch_warnings[None]:
    """A block without Optuna's note that heartbeats are experimental."""
    from optuna.exceptions import ExperimentalWarning

    return warnings.catch_warnings(action="ignore", category=ExperimentalWarning)


def _database_errors() -> tuple[type[Exception], ...]:
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    return (StorageInternalError, SQLAlchemyError)


def _connection_errors() -> tuple[type[Exception], ...]:
    return (*_database_errors(), ImportError, ValueError)  # a missing driver, a port that is no number


def _storage_fault(sweep: Sweep, error: Exception) -> str:
    """What the database said, on one line."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return f"the sweep's storage {shown(sweep.url)} cannot be used: {line}"


def shown(url: str) -> str:
    """The URL without user and password, which no message or file shows from now on."""
    return keep_address_secret(url)
