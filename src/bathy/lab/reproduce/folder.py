"""A result folder: numbers, readings, figure, verdicts and a page, each a plain file that the next step reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bathy.clinic import plots, readings
from bathy.errors import DataError
from bathy.files import write_json, write_text
from bathy.lab.claims import Verdict, claims_of, judge
from bathy.lab.reproduce.item import Item, Measured, Value
from bathy.lab.runs import FORMERLY
from bathy.settings import settings_to_toml

if TYPE_CHECKING:
    from bathy.lab.reproduce.lab import Lab

MARK = {"reproduced": "✔", "not reproduced": "✘", "not decidable": "?"}


def write(folder: Path, item: Item, measured: Measured, origin: Mapping[str, Any]) -> None:
    """Write what was measured; the numbers come last and mean that all is there."""
    readings.write(folder / "readings.jsonl", measured.readings, dict(origin))
    write_json(folder / "numbers.json", {"item": item.name, "origin": origin, "numbers": plain(measured.numbers)})


def write_configs(folder: Path, lab: Lab) -> None:
    """The scale's sizes, and the resolved config of every run, with paths from the results' folder on."""
    write_json(folder / "scale.json", asdict(lab.scale))
    for name, config in lab.used.items():
        text = settings_to_toml(config).replace(f"{lab.out}/", "")
        write_text(folder / f"{name}.toml", text if lab.raw is None else text.replace(str(lab.raw), lab.raw.name))


def conclude(folder: Path, item: Item) -> list[Verdict]:
    """Write what follows from the measured: figure, verdicts and page. No model is needed, nothing is measured."""
    numbers, _ = read_numbers(folder)
    if item.draw is not None:
        chart = item.draw(Measured(numbers, readings.read(folder / "readings.jsonl")[0]))
        for kind in ("svg", "png"):
            plots.save(chart, folder / f"figure.{kind}")
    verdicts = judged(item.name, numbers)
    write_json(folder / "verdicts.json", plain([verdict.row() for verdict in verdicts]))
    write_text(folder / "README.md", f"# {item.title}\n\n{page(item, folder)}\n")
    return verdicts


def judged(item: str, numbers: Mapping[str, Value]) -> list[Verdict]:
    """The verdicts on the item's claims."""
    return [judge(claim, numbers) for claim in claims_of(item)]


def read_numbers(folder: Path) -> tuple[dict[str, Value], dict[str, Any]]:
    """The numbers of a finished folder, and what made them."""
    path = folder / "numbers.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return {_current_name(name): _infinite(number) for name, number in value["numbers"].items()}, value["origin"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} is not a result of `bathy reproduce`: {error}") from None


def _current_name(name: str) -> str:
    run, dot, quantity = name.rpartition(".")
    return f"{run}{dot}{FORMERLY.get(quantity, quantity)}"


def page(item: Item, folder: Path, figure: str = "figure.svg") -> str:
    """The result as Markdown, from the folder's numbers alone: what the paper shows, table, figure, verdicts, command."""
    numbers, origin = read_numbers(folder)
    shows = item.shows if item.shows.startswith("Not in the paper") else f"**In the paper:** {item.shows}"
    parts = [shows, item.table(numbers).markdown()]
    if (folder / "figure.svg").exists():
        parts.append(f"![{item.title}]({figure})")
    if origin.get("missing"):
        parts.append(f"Not trained yet, and left out: {_by_run(origin['missing'])}.")
    parts += [_verdict(verdict) for verdict in judged(item.name, numbers)]
    if origin.get("bleu"):
        parts.append(f"BLEU: `{origin['bleu']}`")
    before = f", runs trained before and not counted: {origin['before']}" if origin.get("before") else ""
    parts.append(f"`{origin['command']}`, {origin['seconds']:.0f} s{before}")
    return "\n\n".join(parts)


def _by_run(names: Sequence[str]) -> str:
    """Names of runs, RUN_SEED, with the seeds of each run together."""
    seeds: dict[str, list[str]] = {}
    for name in names:
        run, _, seed = name.rpartition("_")
        seeds.setdefault(run, []).append(seed)
    return ", ".join(f"`{run}` ({', '.join(own)})" for run, own in seeds.items())


def _verdict(verdict: Verdict) -> str:
    claim = verdict.claim
    return f"{MARK[verdict.answer]} **{verdict.answer}**: {claim.says} *({claim.place})*  \n`{verdict.why}`"


def plain(value: Any) -> Any:
    """The value for JSON, which has no infinity: null stands for it."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _infinite(value: Any) -> Value:
    if isinstance(value, Mapping):
        return {seed: math.inf if inner is None else float(inner) for seed, inner in value.items()}
    return math.inf if value is None else float(value)
