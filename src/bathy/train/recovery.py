"""Recovery: a run that diverges goes back to before the failure, changes one thing, and trains through it again.

The changes are tried in order, each from the same checkpoint: float32 where numbers did not fit; batches that stand out by
their own loss are skipped; the rate is halved; the rate is a tenth; the batches round the failure are skipped. A change that
carries the run past the update at which it failed stays; one that does not is replaced by the next. `recoveries.json` in the
run's folder holds every attempt, so that a resumed run and all ranks do the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bathy.errors import CheckpointError
from bathy.files import read_json, write_json
from bathy.train import checkpoint

FILE, RECENT, FAILED = "recoveries.json", "recent", "failed"
"""The attempts; recent checkpoints, apart from those that are kept; the last checkpoint of each failed attempt."""
MARGIN = 10
"""Updates beyond the last good one that are looked at as well, and the fewest over which a rate is lower."""
SKIP, PRECISION = "batches skipped", "float32"
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
    """Updates whose batches are skipped after update `at`."""
    factor: float = 1.0
    """On the learning rate, until update `until`; from there it returns to 1 over as many updates as it lasted."""
    until: int = 0
    at: int = -1
    """Where batches are skipped; -1: at `start`."""
    precision: str = ""
    """What matrix products are computed in from `start` on; '': as before."""


def read_recoveries(run: Path) -> list[Recovery]:
    """The attempts so far."""
    path = run / FILE
    if not path.exists():
        return []
    try:
        return [Recovery(**row) for row in read_json(path, list)]
    except TypeError as error:
        raise CheckpointError(f"{path} is not a list of recoveries ({error}); restore a copy") from None


def effective(recoveries: Sequence[Recovery]) -> list[Recovery]:
    """Those that the run is made of: a later attempt replaces all that start where it does, or after."""
    return [one for i, one in enumerate(recoveries) if all(later.start > one.start for later in recoveries[i + 1 :])]


def rate_factor(recoveries: Sequence[Recovery], step: int) -> float:
    """What recoveries multiply the rate of an update by: the newest that changes the rate and has begun counts."""
    last = next((one for one in reversed(effective(recoveries)) if one.until and one.start < step), None)
    if last is None:
        return 1.0
    returned = (step - last.until) / max(1, last.until - last.start)
    return last.factor + (1 - last.factor) * min(1.0, max(0.0, returned))


def skipped_batches(recoveries: Sequence[Recovery], step: int) -> int:
    """Updates whose batches a run that stands at `step` skips now."""
    return sum(one.skip for one in effective(recoveries) if step == (one.start if one.at < 0 else one.at))


def precision_from(recoveries: Sequence[Recovery], step: int, usual: str) -> str:
    """What a run that stands at `step` computes in."""
    return next((one.precision for one in reversed(effective(recoveries)) if one.precision and one.start <= step), usual)


def next_start(run: Path, good: int) -> int:
    """Where the coming attempt starts: the last one's place if this is the same failure, else the last checkpoint before it."""
    done = read_recoveries(run)
    if done and good <= done[-1].failed:
        return done[-1].start
    return max([step for step, _ in points(run) if step <= good], default=0)


def next_recovery(
    run: Path, failed: int, good: int, why: str, most: int, suspects: Sequence[int] = (), overflow: bool = False
) -> Recovery | None:
    """The coming attempt, or none when they are used up; `good` is the last update before the failure began, 0: never.

    `suspects` are updates whose batches stand out; `overflow`: numbers did not fit a half-precision format.
    """
    done = read_recoveries(run)
    if len(done) >= most:
        return None
    start = next_start(run, good)
    base = Recovery(failed, why, start, "")
    span = max(failed - start, MARGIN)
    changes = [replace(base, change=PRECISION, precision="float32")] if overflow else []
    if suspects:
        changes.append(replace(base, change=SKIP, skip=suspects[-1] - suspects[0] + 1, at=suspects[0] - 1))
    changes += [replace(base, change=name, factor=factor, until=start + 2 * span) for name, factor in FACTORS.items()]
    if good and not suspects:
        changes.append(replace(base, change=SKIP, skip=2 * MARGIN, at=max(start, good - MARGIN)))
    tried = {one.change for one in done if one.start == start}
    return next((attempt for attempt in changes if attempt.change not in tried), None)


def go_back(run: Path, start: int) -> None:
    """Put the run's checkpoints back to where it starts again; the newest of the failed ones is moved aside.

    Killed anywhere in between, the run resumes before the failure, fails again in the same way and comes here once more.
    """
    number = len(read_recoveries(run)) + 1
    places = dict(points(run))
    for position, (step, folder) in enumerate(reversed(checkpoint.checkpoints(run))):
        if step > start:
            _move_aside(folder, run / FAILED / str(number)) if position == 0 else shutil.rmtree(folder)
    for step, folder in checkpoint.checkpoints(run / RECENT):
        if step > start:
            shutil.rmtree(folder)
    if start and start not in dict(checkpoint.checkpoints(run)):
        copy_checkpoint(places[start], run)


def write_recovery(run: Path, attempt: Recovery) -> None:
    """Write the attempt down, with those before it."""
    write_json(run / FILE, [asdict(one) for one in [*read_recoveries(run), attempt]])


def points(run: Path) -> list[tuple[int, Path]]:
    """Intact checkpoints to start from again, recent ones first."""
    found = [*checkpoint.checkpoints(run / RECENT), *checkpoint.checkpoints(run)]
    return [(step, folder) for step, folder in found if checkpoint.intact(folder)]


def copy_checkpoint(source: Path, run: Path) -> None:
    """Copy a checkpoint into a run, whole or not at all."""
    target = run / "checkpoints" / source.name
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary)
    temporary.rename(target)


def _move_aside(folder: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    folder.rename(place / folder.name)
