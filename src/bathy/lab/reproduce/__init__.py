"""`bathy reproduce`: every figure and table of the paper as one command, at any scale, with verdicts on its claims.

    bathy reproduce figure-4 --scale tiny   ──▶  results/tiny/figure-4/{numbers.json, readings.jsonl, figure.svg,
                                                                        verdicts.json, configs/, README.md}

Data, runs and items of one scale share a folder; what is finished there is not done again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bathy.errors import ConfigError, nearest, some, unknown
from bathy.files import origin
from bathy.lab.claims import Verdict

if TYPE_CHECKING:
    from bathy.lab.reproduce.item import Item
    from bathy.lab.reproduce.lab import Lab

PLACES: dict[str, str] = {
    "recipe": "tuning.RECIPE",
    "batch": "tuning.BATCH",
    "figure-1": "curves.FIGURE_1",
    "figure-3": "gradients.FIGURE_3",
    "figure-4": "stability.FIGURE_4",
    "figure-5": "updates.FIGURE_5",
    "figure-7": "dependency.FIGURE_7",
    "figure-8": "dependency.FIGURE_8",
    "figure-9": "curves.FIGURE_9",
    "figure-10": "grid.FIGURE_10",
    "figure-11": "updates.FIGURE_11",
    "table-1": "variants.TABLE_1",
    "table-2": "quality.TABLE_2",
    "table-3": "quality.TABLE_3",
    "table-4": "quality.TABLE_4",
    "europarl": "quality.EUROPARL",
    "europarl-admin": "quality.EUROPARL_ADMIN",
    "warmup": "variants.WARMUP",
    "initialisations": "variants.INITIALISATIONS",
    "rescaled": "variants.RESCALED",
    "multi30k": "mark.MULTI30K",
    "multi30k-deep": "mark.MULTI30K_DEEP",
    "depth": "depth.DEPTH",
}
"""Item to where it is defined: the recipe that all others use, figures, tables, the rest."""


def find_item(name: str) -> Item:
    """The item of that name."""
    if name not in PLACES:
        raise ConfigError(unknown("item", name, PLACES))
    module, attribute = PLACES[name].split(".")
    item: Item = getattr(import_module(f"bathy.lab.reproduce.{module}"), attribute)
    return item


def reproduce(name: str, lab: Lab, again: bool = False) -> list[Verdict]:
    """Measure the item unless its folder holds that already, and conclude from it."""
    from bathy.lab.reproduce import folder

    item, place = find_item(name), lab.out / name
    if lab.scale.name not in item.needs:
        raise ConfigError(f"{name} cannot be run at --scale {lab.scale.name}; it can at {' and '.join(item.needs)}")
    settings = lab.settings()
    if again or not _made_with(place, settings):
        start = time.monotonic()
        lab.forget()
        measured = item.measure(lab)
        if lab.missing and not measured.numbers:
            raise ConfigError(f"no run of {name} is finished ({some(lab.missing)}); --train names the ones to train")
        folder.write_configs(place / "configs", lab)
        seconds = round(time.monotonic() - start, 1)
        made = origin(**settings) | {"command": lab.command(name), "seconds": seconds, "before": len(lab.before), **lab.facts}
        made |= {"missing": sorted(lab.missing)} if lab.missing else {}
        folder.write(place, item, measured, made)
    return folder.conclude(place, item)


def check_patterns(lab: Lab, items: Sequence[str]) -> None:
    """An error for a pattern of --train that is the name of no run of these items, which have been measured."""
    runs = {path.stem for name in items for path in (lab.out / name / "configs").glob("*.toml")}
    for pattern in lab.train:
        if pattern not in ("*", "none") and not any(fnmatchcase(run, pattern) for run in runs):
            raise ConfigError(f"--train {pattern}: {' or '.join(items)} has no such run.{nearest(pattern, runs)}")


def _made_with(place: Path, settings: dict[str, Any]) -> bool:
    """Whether the folder holds a whole result of the same settings."""
    from bathy.lab.reproduce.folder import read_numbers

    if not (place / "numbers.json").exists():
        return False
    made = read_numbers(place)[1]
    return not made.get("missing") and all(made.get(key) == value for key, value in settings.items())


def listing() -> list[list[str]]:
    """Rows for a table: item, and data, time and memory at each scale."""
    from bathy.lab.reproduce.scale import SCALES

    rows = []
    for name in PLACES:
        item = find_item(name)
        needs = [item.needs.get(scale) for scale in SCALES]
        rows.append([name, *(f"{n.data}, {n.time}, {n.gigabytes:g} GB" if n else "–" for n in needs)])
    return rows


def line(verdict: Verdict) -> str:
    """The verdict for a person: answer, claim, and the figures behind it."""
    return f"  {verdict.answer.upper()}: {verdict.claim.says} ({verdict.claim.place})\n      {verdict.why}"
