"""Whether post-mortems name the cause of runs that were made to fail, and how many such runs recover by themselves.

The runs, the names that count and the thresholds are in design.py. `--data FOLDER` keeps rows and runs there: the same command
resumes. `--quick` makes one run of each cause from the development seeds.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bathy import console
from bathy.errors import Diverged, TrainingError
from bathy.lab.bench.postmortem.design import AS_WELL, CAUSES, DEVELOPMENT, JUDGED, PER_CAUSE, TRAINED, Case, case
from bathy.lab.bench.postmortem.injected import VOCAB, Injected, write_data
from bathy.lab.postmortem.failure import final_loss
from bathy.lab.postmortem.run import OVER, postmortem
from bathy.lab.reproduce.folder import plain
from bathy.tasks import read_config
from bathy.train.log import read_log
from bathy.train.loop import fit
from bathy.train.recovery import read_recoveries
from bathy.train.world import World

Row = dict[str, Any]
LONGER = 400
"""Updates of recovering runs and their twins, at least: detection needs time."""


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Make the runs, examine them, print what was named and what recovered."""
    folder = data or Path(tempfile.mkdtemp(prefix="bathy-postmortem-"))
    first, count = (DEVELOPMENT, 1) if quick else (JUDGED, PER_CAUSE)
    rows = list(rows_of(folder, range(first, first + count)))
    if data is None:
        shutil.rmtree(folder)
    return summary(rows)


def rows_of(folder: Path, seeds: range) -> Iterator[Row]:
    """A row for each cause and seed: finished ones from rows.jsonl, the others made now."""
    path, data = folder / "rows.jsonl", write_data(folder / "data")
    known = {(row["cause"], row["seed"]): row for row in read_log(path)}
    for seed, cause in console.track([(seed, cause) for seed in seeds for cause in CAUSES], "examining runs"):
        if (cause, seed) not in known:
            row = examined(cause, seed, folder / "work", data)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            known[cause, seed] = row
        yield known[cause, seed]


def examined(cause: str, seed: int, folder: Path, data: Path) -> Row:
    """One case: the post-mortems of the failing run and of its twin, and both again with recovery."""
    shutil.rmtree(folder, ignore_errors=True)
    start = time.process_time()
    failing, healthy = case(cause, seed)
    verdicts = {name: autopsy(one, folder / name, data) for name, one in {"failing": failing, "healthy": healthy}.items()}
    again = {name: recover(one, folder / name, data) for name, one in {"recovered": failing, "twin": healthy}.items()}
    both = {f"{name}_{key}": value for name, found in verdicts.items() for key, value in found.items()}
    return {
        "cause": cause, "seed": seed, **both,
        "named": verdicts["failing"]["verdict"] in CAUSES[cause].names, **again,
        "cpu_seconds": round(time.process_time() - start, 1),
    }  # fmt: skip


def autopsy(one: Case, run_folder: Path, data: Path) -> Row:
    """Train the case and examine it."""
    train(one, run_folder, data)
    result = postmortem(run_folder, math.inf, read_config, lambda config: Injected(config, one.injection))
    if OVER in result.left_out.values():
        raise TrainingError("stopped by a signal; the same command with --data resumes")
    found, task = result.failure, Injected(read_config(run_folder / "config.toml"), one.injection)
    return {
        "loss": final_loss(read_log(run_folder / "metrics.jsonl")), "guessing": task.chance(),
        "failure": found.why if found else "", "verdict": result.verdict.cause, "text": result.verdict.text,
        "prevents": result.verdict.prevents, "moved_first": result.moved_first,
    }  # fmt: skip


def train(one: Case, folder: Path, data: Path, extra: tuple[str, ...] = ()) -> None:
    """Train a case from its beginning to its end, part by part."""
    where = [f"data.path={data}", f"data.vocab={VOCAB}"]
    for until, changes in one.stages:
        config = read_config(None, [*one.settings, *where, *extra, *changes])
        with suppress(Diverged):
            state = fit(Injected(config, one.injection), config, folder, World(), allow_changes=True, until=until)
            if state.step < (until or config.train.steps):
                raise TrainingError(f"stopped by a signal at update {state.step}; the same command with --data resumes")


def recover(one: Case, folder: Path, data: Path) -> Row:
    """What becomes of a case with train.on_divergence = "recover"."""
    own = next(int(setting.partition("=")[2]) for setting in one.settings if setting.startswith("train.steps="))
    steps = max(LONGER, own)
    train(one, folder, data, ("train.on_divergence=recover", f"train.steps={steps}"))
    rows = read_log(folder / "metrics.jsonl")
    ended = max(row["step"] for row in rows) == steps
    return {"ended": ended, "loss": final_loss(rows), "changes": [attempt.change for attempt in read_recoveries(folder)]}


def summary(rows: list[Row]) -> dict[str, Any]:
    """Tables, and the numbers."""
    counts = {
        "runs": lambda row: True, "failed": _failed, "named": _named, "twins_trained": _trained, "blamed": _blamed,
        "recovered": _well, "twins_touched": _touched,
    }  # fmt: skip
    columns = ["injected", "runs", "failed", "cause named", "twins that train", "of these blamed"]
    columns += ["recovered as well as their twins", "twins touched"]
    own = {cause: [row for row in rows if row["cause"] == cause] for cause in CAUSES}
    table = [(cause, *(sum(map(of, some)) for of in counts.values())) for cause, some in own.items() if some]
    console.out.print(console.table("runs with an injected cause", columns, table))
    for row in rows:
        if not (_named(row) and _trained(row) and _well(row)) or _blamed(row) or _touched(row):
            console.out.print(
                f"{row['cause']}, seed {row['seed']}: {row['failing_text']}; twin: {row['healthy_text']}; {_end(row)}"
            )
    result = {name: sum(map(of, rows)) for name, of in counts.items()}
    console.out.print(
        f"cause named in {result['named']} of {len(rows)}; {result['twins_trained']} twins train, of which {result['blamed']} "
        f"are blamed and {result['twins_touched']} touched; {result['recovered']} recover to within {AS_WELL} nats"
    )
    return result | {"rows": plain(rows)}


def _end(row: Row) -> str:
    """How a run with recovery ended, beside its twin."""
    changes = ", ".join(row["recovered"]["changes"]) or "no change"
    return f"with recovery ({changes}) {row['recovered']['loss']:.2f}, twin {row['twin']['loss']:.2f} nats"


def _trained(row: Row) -> bool:
    """Whether the twin is healthy: it was examined only to see whether a healthy run is blamed."""
    return bool(row["healthy_loss"] < row["healthy_guessing"] - TRAINED)


def _failed(row: Row) -> bool:
    return bool(row["failing_failure"])


def _named(row: Row) -> bool:
    return bool(row["named"])


def _blamed(row: Row) -> bool:
    return _trained(row) and bool(row["healthy_failure"] or row["healthy_verdict"])


def _touched(row: Row) -> bool:
    return _trained(row) and bool(row["twin"]["changes"])


def _well(row: Row) -> bool:
    return _trained(row) and row["recovered"]["ended"] and row["recovered"]["loss"] <= row["twin"]["loss"] + AS_WELL
