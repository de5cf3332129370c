"""Recovery: a run that diverges goes back to before the failure, changes one thing, and trains through it again.

The changes are tried in order, each from the same checkpoint: the batches round the failure are skipped, the rate is halved,
the rate is a tenth. A change that carries the run past the update at which it failed stays; one that does not is replaced by
the next. `recoveries.json` in the run's folder holds every attempt, so that a resumed run and all ranks do the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bathy.errors import CheckpointError
from bathy.files import read_json, write_json
from bathy.train import checkpoint

FILE, RECENT, FAILED = "recoveries.json", "recent", "failed"
"""The attempts; recent checkpoints, apart from those that are kept; the last checkpoint of each failed attempt."""
MARGIN = 10
"""Updates beyond the last good one whose batches are skipped as well."""
FACTORS = {"half the rate": 0.5, "a tenth of the rate": 0.1}


@dataclass(frozen=True)
class Recovery:
    """One attempt."""

    failed: int
    """Update at which the failure was found."""
    why: str
    start: int
    """Update that the run went back to; 0: its beginning."""
    change: str
    skip: int = 0
    """Updates whose batches are skipped after `start`."""
    factor: float = 1.0
    """On the learning rate, until update `until`."""
    until: int = 0


def read_recoveries(run: Path) -> list[Recovery]:
    """The attempts so far."""
    path = run / FILE
    if not path.exists():
        return []
    try:
        return [Recovery(**row) for row in read_json(path, list)]
    except TypeError as error:
        raise CheckpointError(f"{path} is not a list of recoveries ({error}); restore a copy") from None


def rate_factor(recoveries: Sequence[Recovery], step: int) -> float:
    """What recoveries multiply the rate of an update by: the newest that covers it counts."""
    return next((one.factor for one in reversed(recoveries) if one.start < step <= one.until), 1.0)


def skipped_batches(recoveries: Sequence[Recovery], step: int) -> int:
    """Updates whose batches a run that stands at `step` skips now."""
    last = recoveries[-1] if recoveries else None
    return last.skip if last and last.start == step else 0


def next_recovery(run: Path, failed: int, good: int, why: str, most: int) -> Recovery | None:
    """The coming attempt, or none when they are used up; `good` is the last update before the failure began, 0: never."""
    done = read_recoveries(run)
    if len(done) >= most:
        return None
    last = done[-1] if done else None
    if last and good <= last.failed:  # the same failure: the next change, from the same place
        start, tried = last.start, [one.change for one in done if one.start == last.start]
    else:
        start, tried = max([step for step, _ in _points(run) if step <= good], default=0), []
    span = max(failed - start, MARGIN)
    skips = {"batches skipped": Recovery(failed, why, start, "batches skipped", skip=good - start + MARGIN)} if good else {}
    rates = {name: Recovery(failed, why, start, name, 0, factor, failed + 2 * span) for name, factor in FACTORS.items()}
    return next((attempt for name, attempt in (skips | rates).items() if name not in tried), None)


def go_back(run: Path, recovery: Recovery) -> None:
    """Write the attempt down and put the run's checkpoints back to where it starts; the failed one is moved aside."""
    done = read_recoveries(run)
    for number, (step, folder) in enumerate(reversed(checkpoint.checkpoints(run))):
        if step > recovery.start:
            _move_aside(folder, run / FAILED / str(len(done) + 1)) if number == 0 else shutil.rmtree(folder)
    places = dict(_points(run))
    for step, folder in checkpoint.checkpoints(run / RECENT):
        if step > recovery.start:
            shutil.rmtree(folder)
    if recovery.start and recovery.start not in dict(checkpoint.checkpoints(run)):
        target = run / "checkpoints" / places[recovery.start].name
        shutil.copytree(places[recovery.start], target.with_name(f".{target.name}.tmp"))
        target.with_name(f".{target.name}.tmp").rename(target)
    write_json(run / FILE, [asdict(one) for one in [*done, recovery]])


def _points(run: Path) -> list[tuple[int, Path]]:
    """Intact checkpoints of both kinds."""
    found = [*checkpoint.checkpoints(run / RECENT), *checkpoint.checkpoints(run)]
    return [(step, folder) for step, folder in found if checkpoint.intact(folder)]


def _move_aside(folder: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    folder.rename(place / folder.name)
