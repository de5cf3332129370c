"""Audits of models without a mistake: our schemes, and every class of transformers and timm that builds small."""

from __future__ import annotations

import json
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bathy import console
from bathy.clinic.audit import audit
from bathy.core.schemes import SCHEMES
from bathy.errors import BathyError
from bathy.lab.bench import zoo
from bathy.lab.bench.audit.mutations import DEPTHS, build
from bathy.lab.bench.optional import torchvision_ready
from bathy.lab.bench.shrink import Excluded

LAYERS = 6
LIBRARIES = ("bathy's schemes", "transformers", "timm")
SECONDS = 30
"""CPU time that one model may take."""


class Late(BaseException):
    """A model took too long; no library's `except Exception` takes it for an error of its own."""


Made = Callable[[], tuple[nn.Module, Any]]
Row = dict[str, Any]


def false_alarms(data: Path | None, quick: bool) -> dict[str, Any]:
    """The alarms, how many models were audited, and why each of the others was left out."""
    path = data / "sound.jsonl" if data else None
    rows: dict[str, Row] = {row["name"]: row for row in _read(path)}
    left = [(name, made) for name, made in _sound(quick) if name not in rows]
    for name, made in console.track(left, "auditing sound models"):
        rows[name] = audited(name, made)
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[name], ensure_ascii=False) + "\n")
    alarms = [(row["name"], text) for row in rows.values() for text in row["alarms"]]
    left_out = {row["name"]: row["left_out"] for row in rows.values() if row["left_out"]}
    return {
        "tried": len(rows),
        "audited": len(rows) - len(left_out),
        "alarms": len({name for name, _ in alarms}),
        "alarm_list": alarms,
        "failed": {row["name"]: row["failed"] for row in rows.values() if row["failed"]},
        "left_out": left_out,
        "by_library": [_counted(library, rows.values()) for library in LIBRARIES],
        "schemes": {row["name"]: row["scheme"] for row in rows.values() if row["scheme"]},
    }


def _counted(library: str, rows: Iterable[Row]) -> Row:
    """How many models of a library were tried, audited and left out, and how many have an alarm."""
    own = [row for row in rows if _library(row["name"]) == library]
    out, failed, alarms = (sum(bool(row[key]) for row in own) for key in ("left_out", "failed", "alarms"))
    return {
        "library": library,
        "tried": len(own),
        "left_out": out,
        "audited": len(own) - out,
        "failed": failed,
        "alarms": alarms,
    }


def _library(name: str) -> str:
    """Where a model is from: a scheme's name is followed by its shape, a foreign model's comes after its library."""
    return next((library for library in LIBRARIES[1:] if name.startswith(f"{library} ")), LIBRARIES[0])


def audited(name: str, made: Made) -> Row:
    """What the audit of one model says, why it was left out, or what the audit itself failed with."""
    row: Row = {"name": name, "scheme": "", "alarms": [], "left_out": "", "failed": ""}
    signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings(action="ignore"):
            return row | _judged(*_made(made))
    except Late:
        return row | {"left_out": f"takes more than {SECONDS} s"}
    except Excluded as error:
        return row | {"left_out": str(error)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _made(made: Made) -> tuple[nn.Module, Any]:
    """The model and its batch; a class of somebody else's may fail in any way, and how is part of the result."""
    try:
        return made()
    except Excluded:
        raise
    except Exception as error:
        raise Excluded(f"cannot be built: {_said(error)}") from error


def _judged(model: nn.Module, batch: Any) -> Row:
    """What the audit finds; an error that is none of ours is a fault of the audit, and not a reason to leave the model out."""
    try:
        found = audit(model, batch)
    except BathyError as error:
        return {"left_out": f"refused: {error}"}
    except Exception as error:
        return {"failed": _said(error)}
    return {"scheme": found.scheme, "alarms": [f"{each.name}: {each}" for each in found.deviations]}


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:160]}"


def _sound(quick: bool) -> Iterator[tuple[str, Made]]:
    for scheme in SCHEMES:
        for shape, depths in list(DEPTHS.items())[: 1 if quick else None]:
            yield f"{scheme} {shape}", partial(build, scheme, depths, 1)
    if not quick:
        _quiet()
        for library in (partial(zoo.transformers, own=True, heads=True), zoo.timm):
            yield from _entries(library)


def _entries(library: Callable[[], Iterator[zoo.Entry]]) -> Iterator[tuple[str, Made]]:
    """The models of a library; none where it is not installed, which is said."""
    try:
        for name, of, build_one, _ in library():
            yield f"{of} {name}", partial(build_one, LAYERS)
    except ImportError as error:
        console.warn(f"not audited: {error}")


def _read(path: Path | None) -> list[Row]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _quiet() -> None:
    with suppress(ImportError):  # before transformers, which has models around those of timm
        torchvision_ready()
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)


def _late(*_: Any) -> None:
    raise Late
