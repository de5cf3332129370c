"""Run, checkpoint and model folders, checked whole: checksums, shapes, finite weights, configs that load.

What a data or corpus folder should be, its task knows: the `check` of its own folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bathy.clinic.readings import read as read_readings
from bathy.errors import BathyError, CheckpointError
from bathy.files import abandoned, is_sealed, lock_folder, read_json, write_text
from bathy.tasks import kind_of_folder, models, part, read_config
from bathy.tasks.sums import SUMS, check_sums
from bathy.tasks.verify.fault import Fault, attempt
from bathy.train import checkpoint

ANOTHER = "use another checkpoint; `--repair` puts it aside"


def check_run(folder: Path) -> Iterator[Fault]:
    """Config, tokenizer, every checkpoint, and every line of the logs."""
    config = folder / "config.toml"
    yield from attempt(config, partial(read_config, config), "restore it, or start the run anew")
    if (folder / "text.json").exists() or (folder / "tokenizer.json").exists():
        yield from attempt(folder / "text.json", partial(_load_codec, folder), "copy it from the data folder")
    for _, place in checkpoint.checkpoints(folder):
        yield from check_checkpoint(place)
    for name in ("metrics.jsonl", "readings.jsonl"):
        yield from _check_lines(folder / name)
    for left in filter(abandoned, sorted(folder.rglob(".*.tmp"))):
        yield Fault(left, "left by a process that was killed", "the next start removes it")


def check_checkpoint(folder: Path) -> Iterator[Fault]:
    """Checksums, then the trainer's state, then weights that are finite and fit the model they are of."""
    if fault := checkpoint.damage(folder):
        yield Fault(folder, f"damaged ({fault})", ANOTHER)
        return
    yield from attempt(folder / checkpoint.TRAINER, partial(checkpoint.read_trainer, folder), ANOTHER)
    described = checkpoint.meta(folder).get("model")
    load = partial(models.load if described else checkpoint.read_weights, folder)
    yield from attempt(folder / checkpoint.WEIGHTS, load, ANOTHER)


def check_model(folder: Path) -> Iterator[Fault]:
    """Settings, weights and tokenizer of an exported model, and the checksums of all its files."""
    again = "export the model again, or restore a copy"
    yield from attempt(folder / SUMS, partial(check_sums, folder), again)
    if not (folder / SUMS).exists() and is_sealed(folder / "config.json"):  # version 0.1 wrote neither
        yield Fault(folder / SUMS, "missing", again)
    path = folder / "config.json"
    faults = attempt(path, partial(read_json, path), again)
    yield from faults
    described = not faults and "model" in read_json(path)  # else it is of another program's format
    if (folder / checkpoint.WEIGHTS).exists() or described:
        load = partial(models.load if described else checkpoint.read_weights, folder)
        yield from attempt(folder / checkpoint.WEIGHTS, load, again)
    yield from attempt(folder / "text.json", partial(_check_codec, folder, described), again)


def _load_codec(folder: Path) -> Any:
    return part(kind_of_folder(folder), "check").Codec.load(folder)


def _check_codec(folder: Path, described: bool) -> None:
    codec = _load_codec(folder)
    if described and codec.vocab != (vocab := read_json(folder / "config.json")["model"].get("vocab")):
        raise CheckpointError(f"the tokenizer has {codec.vocab} entries, the model {vocab}")


def _check_lines(path: Path) -> Iterator[Fault]:
    """Every line must be a JSON object; updates must not go backwards."""
    if not path.exists():
        return
    wrong = _wrong_lines(path)
    if wrong:
        many = f"{len(wrong)} lines are" if len(wrong) > 1 else f"line {wrong[0]} is"
        yield Fault(path, f"{many} not JSON", "`--repair` removes them")
    elif path.name == "readings.jsonl":
        yield from attempt(path, partial(read_readings, path))


def _wrong_lines(path: Path) -> list[int]:
    return [number for number, line in enumerate(_lines(path), 1) if not _is_row(line)]


def _lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    return text.removesuffix("\n").split("\n") if text else []


def _is_row(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict) and "\ufffd" not in line
    except (ValueError, RecursionError):
        return False


def repair_run(folder: Path, faults: list[Fault]) -> Iterator[str]:
    """Put damaged checkpoints aside, remove broken lines and what killed processes left; nothing intact is touched."""
    with lock_folder(folder):
        yield from (f"removed {fault.path}" for fault in faults if fault.path.suffix == ".tmp")
        for place in {_checkpoint_of(fault.path) for fault in faults} - {None}:
            aside = place.with_name(f"damaged_{place.name}")  # type: ignore[union-attr]
            place.rename(aside)  # type: ignore[union-attr]
            yield f"put {place} aside as {aside.name}"
        for name in ("metrics.jsonl", "readings.jsonl"):
            path = folder / name
            if path.exists() and (wrong := _wrong_lines(path)):
                write_text(path, "".join(f"{line}\n" for line in _lines(path) if _is_row(line)))
                yield f"removed {len(wrong)} broken lines of {path}"
        yield from _repair_codec(folder)


def _checkpoint_of(path: Path) -> Path | None:
    """The checkpoint folder that a fault is in."""
    return next((place for place in (path, path.parent) if place.parent.name == "checkpoints"), None)


def _repair_codec(folder: Path) -> Iterator[str]:
    """Restore a run's tokenizer from its data folder, if that has the very files that the run was given."""
    try:
        _load_codec(folder)
    except BathyError:
        try:
            source = read_config(folder / "config.toml").data.folders[0]
            wanted = read_json(folder / "text.json").get("sha256")
            if wanted and wanted == read_json(source / "text.json").get("sha256"):
                _load_codec(source).save(folder)
                yield f"restored the tokenizer of {folder} from {source}"
        except BathyError:
            return


def check_data(folder: Path) -> Iterator[Fault]:
    """Every file of a data folder."""
    yield from part(kind_of_folder(folder), "check").check_data(folder)


def repair_data(folder: Path, faults: list[Fault]) -> Iterator[str]:
    """Prepare a data folder again, where nothing can be lost by it."""
    if faults:
        yield from part(kind_of_folder(folder), "check").repair_data(folder)


def check_corpus(folder: Path) -> Iterator[Fault]:
    """Every file of a corpus folder."""
    yield from part(kind_of_folder(folder), "check").check_corpus(folder)


def repair_nothing(folder: Path, faults: list[Fault]) -> Iterator[str]:
    """Say that a folder of this kind is repaired by making it again."""
    if faults:
        yield f"{folder} cannot be repaired in place: {faults[0].way_out or 'make it again'}"
