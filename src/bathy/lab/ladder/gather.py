"""The runs of a ladder's folder as flat rows: those that ended here, those kept from elsewhere, and what other machines did."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

from bathy.core.schemes import SCHEMES
from bathy.errors import ConfigError
from bathy.files import read_json
from bathy.lab.ladder.ladder import Ladder
from bathy.lab.ladder.results import Row
from bathy.lab.runs import differences, ended, read_run
from bathy.lab.sweep.grid import Point, changes
from bathy.lab.sweep.results import rows as sweep_rows
from bathy.lab.sweep.study import connect
from bathy.tasks import read_config

OUTCOME = "outcome.json"


def flat_rows(ladder: Ladder, storage: str = "") -> list[Row]:
    """One row for each run in the ladder's folder, of this grid or another, and each that is known only to its storage.

    Schemes come in the order of their table, whichever the last command named.
    """
    axes = ladder.axes()
    here = [row for path in sorted(ladder.out.glob(f"*/{OUTCOME}")) if (row := _ended(ladder, [*axes], path.parent))]
    found = {_place(row): row for row in [*_elsewhere(ladder, storage, [*axes]), *here]}
    order = {scheme: place for place, scheme in enumerate(SCHEMES)}
    return sorted(
        found.values(), key=lambda r: (r["layers"], order.get(r["scheme"], len(order)), r["scheme"], r["lr"], r["seed"])
    )


def restore(ladder: Ladder, kept: Path) -> None:
    """Put the outcomes that are kept in a folder into the ladder's, where a run is not there: it is not trained again.

    Outcomes of other settings, or of another text, are refused: the page that shows them would lose them.
    """
    axes = ladder.axes()
    config = read_config(ladder.config, [*ladder.settings, *changes({key: words[0] for key, words in axes.items()})])
    varied = {part for key in axes for part in key.split("+")}
    found = {path: read_json(path) for path in sorted(kept.glob(f"runs/*/{OUTCOME}"))}
    for path, outcome in found.items():
        if changed := differences(config, outcome, varied):
            what = f"{kept} keeps runs that differ in more than their grid: {', '.join(changed)} ({path.parent.name})"
            raise ConfigError(f"{what}; choose a different page, or a different last part of --out {ladder.out}")
    for path in found:
        target = ladder.out / path.parent.name / OUTCOME
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _place(row: Row) -> tuple[Any, ...]:
    return row["scheme"], row["layers"], row["lr"], row["seed"]


def _row(point: Point, keys: list[str], **facts: Any) -> Row:
    layers, scheme, rate, seed = (point[key] for key in keys)
    return {"scheme": scheme, "layers": int(layers), "lr": float(rate), "seed": int(seed), **facts}


def _elsewhere(ladder: Ladder, storage: str, keys: list[str]) -> list[Row]:
    """Runs that the study knows and that have not ended in this folder."""
    known = [row for row in sweep_rows(connect(ladder.sweep(storage))) if row.keys() >= set(keys)]
    away = [row for row in known if not row["folder"] or not (ladder.out / str(row["folder"]) / OUTCOME).exists()]
    return [
        _row(row, keys, state=row["state"], loss=row["loss"], why=row["why"], seconds=row["seconds"] or 0.0) for row in away
    ]


def _ended(ladder: Ladder, keys: list[str], folder: Path) -> Row | None:
    """The row of a run that ended in a folder; nothing where its config is not the ladder's."""
    made = read_json(folder / OUTCOME)["config"]
    point = {key: str(_setting(made, key)) for key in keys}
    if not ended(read_config(ladder.config, [*ladder.settings, *changes(point)]), folder):
        return None
    outcome = read_run(folder).outcome
    state = "stopped" if outcome.stopped or not math.isfinite(outcome.loss) else "trained"
    return _row(point, keys, state=state, loss=outcome.loss, why=outcome.why, seconds=outcome.seconds)


def _setting(made: dict[str, Any], key: str) -> Any:
    """The value of `section.key`, or of the first of several joined by +."""
    section, _, name = key.split("+")[0].partition(".")
    return made[section][name]
