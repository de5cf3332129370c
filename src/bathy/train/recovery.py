"""Recovery: a run that diverges goes back to before the failure, changes one thing, and trains through it again.

The changes are rows of the table that post-mortems use too (changes.py): those that fit how the run failed, the most specific
first, then lower rates, clipping, and the batches round the failure skipped. Each is tried from the same checkpoint; a longer
warm-up and Admin only where that is the beginning. A change that carries the run past the update at which it failed stays; one
that does not is replaced by the next. `recoveries.json` in the run's folder holds every attempt, so that a resumed run and all
ranks do the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from bathy.errors import CheckpointError
from bathy.files import read_json, write_json
from bathy.train import checkpoint
from bathy.train.changes import BATCHES, CHANGES, STEADY, fitting
from bathy.train.evidence import Evidence
from bathy.train.sections import read_sections

FILE, RECENT, FAILED = "recoveries.json", "recent", "failed"
"""The attempts; recent checkpoints, apart from those that are kept; the last checkpoint of each failed attempt."""
MARGIN = 10
"""Updates beyond the last good one that are looked at as well, and the fewest over which a rate is lower."""
AnyConfig = TypeVar("AnyConfig")


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
    ceiling: float = 0.0
    """The largest rate from `start` on; 0: no limit."""
    settings: list[str] = field(default_factory=list)
    """Changes of the config from `start` on, section.key=value."""


def read_recoveries(run: Path) -> list[Recovery]:
    """The attempts so far."""
    path = run / FILE
    if not path.exists():
        return []
    try:
        return [_read(row) for row in read_json(path, list)]
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a list of recoveries ({error}); restore a copy") from None


def _read(row: dict[str, Any]) -> Recovery:
    """An attempt; a number format was once a field of its own."""
    values = dict(row)
    if precision := values.pop("precision", ""):
        values["settings"] = [*values.get("settings", []), f"train.precision={precision}"]
    return Recovery(**values)


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


def recovered_rate(recoveries: Sequence[Recovery], step: int, usual: float) -> float:
    """What recoveries make of the usual rate of an update."""
    limits = [one.ceiling for one in effective(recoveries) if one.ceiling and one.start < step]
    return min([usual * rate_factor(recoveries, step), *limits])


def skipped_batches(recoveries: Sequence[Recovery], step: int) -> int:
    """Updates whose batches a run that stands at `step` skips now."""
    return sum(one.skip for one in effective(recoveries) if step == (one.start if one.at < 0 else one.at))


def amended(config: AnyConfig, recoveries: Sequence[Recovery], step: int) -> AnyConfig:
    """The settings that a run which stands at `step` trains with: the config's, and what recoveries changed before."""
    changes = [change for one in effective(recoveries) if one.start <= step for change in one.settings]
    if not changes:
        return config
    values = config.model_dump()  # type: ignore[attr-defined]
    for section, table in read_sections(None, changes).items():
        values[section] = {**values[section], **table}
    return type(config)(**values)


def next_start(run: Path, good: int) -> int:
    """Where the coming attempt starts: the last one's place if this is the same failure, else the last checkpoint before it."""
    done = read_recoveries(run)
    if done and good <= done[-1].failed:
        return done[-1].start
    return max([step for step, _ in points(run) if step <= good], default=0)


def next_recovery(run: Path, config: Any, failed: int, good: int, why: str, evidence: Evidence) -> Recovery | None:
    """The coming attempt, or none when they are used up; `good` is the last update before the failure began, 0: never."""
    done = read_recoveries(run)
    if len(done) >= config.train.recoveries:
        return None
    start = next_start(run, good)
    tried = {one.change for one in done if one.start == start}
    own = amended(config, [one for one in done if one.start < start], start)
    coming = attempts(own, Recovery(failed, why, start, ""), good, evidence)
    return next((attempt for attempt in coming if attempt.change not in tried), None)


def attempts(config: Any, base: Recovery, good: int, evidence: Evidence) -> list[Recovery]:
    """What can be tried from `base.start`, in order; the batches round the failure are skipped last, if none stands out."""
    names = [name for name, fits in fitting(config, good, evidence).items() if fits]
    possible = [name for name in names if not base.start or not CHANGES[name].from_start]
    found = [one for name in possible if (one := _attempt(config, replace(base, change=name), evidence))]
    if good and not evidence.suspects:
        found.append(replace(base, change=BATCHES, skip=2 * MARGIN, at=max(base.start, good - MARGIN)))
    return found


def _attempt(config: Any, base: Recovery, evidence: Evidence) -> Recovery | None:
    """What a change of the table means for a run; nothing where it does not apply."""
    change, suspects = CHANGES[base.change], evidence.suspects
    if base.change == BATCHES:
        return replace(base, skip=suspects[-1] - suspects[0] + 1, at=suspects[0] - 1)
    if base.change == STEADY and evidence.raised:
        return replace(base, ceiling=evidence.raised.before)
    if change.factor != 1:
        return replace(base, factor=change.factor, until=base.start + 2 * max(base.failed - base.start, MARGIN))
    settings = change.settings(config)
    return replace(base, settings=settings) if settings else None


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
