"""What a model can be trained for: a task is one folder with `config` (its settings) and `task` (what the engine asks).

The commands find the rest in the same folder: `settings` and `prepare`, `overview` (what `bathy data` shows), `check` (what
`bathy verify` looks at). A task that is added is one row of TASKS. A task of a user's own needs none: `bathy.train.fit`
takes the object itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bathy.errors import BathyError, ConfigError, unknown
from bathy.files import read_json
from bathy.train.sections import check_sections, read_sections

if TYPE_CHECKING:
    from bathy.train.task import Task

TASKS: dict[str, str] = {"translation": "bathy.tasks.translation", "language": "bathy.tasks.language"}
"""Kind of task, as [task] kind says, to its folder."""
DEFAULT = "translation"


def part(kind: str, module: str) -> Any:
    """A module of a task's folder, e.g. its config, task or prepare; one that the task lacks is an error."""
    if kind not in TASKS:
        raise ConfigError(unknown("task", kind, TASKS))
    try:
        return import_module(f"{TASKS[kind]}.{module}")
    except ModuleNotFoundError as error:
        if error.name != f"{TASKS[kind]}.{module}":
            raise
        raise ConfigError(f"the task {kind} has no {module}") from None


def read_config(path: Path | None, changes: Sequence[str] = (), needs: str = "") -> Any:
    """The settings in a TOML file (none: the defaults) with `section.key=value` changes on top, as its task's Config.

    `needs` is the only task for which the caller has a use.
    """
    values = read_sections(path, changes)
    kind = _kind(values)
    if needs and kind != needs:
        raise ConfigError(f"{path or 'the config'} is for the task {kind}; this command needs one for {needs}")
    config: Any = part(kind, "config").Config
    check_sections(values, list(config.model_fields))
    return config(**values)


def make_task(config: Any) -> Task:
    """The task of a config."""
    return part(config.task.kind, "task").make(config)


def prepare_data(path: Path | None, changes: Sequence[str] = ()) -> Any:
    """Make a config's data folder from its raw text, where that is not done; returns what it holds, to be printed."""
    kind = kind_in_config(path, changes)
    settings = part(kind, "settings").read_preparing(path, changes)
    folder = settings.data.folders[0]
    check_data_kind(folder, kind)
    return part(kind, "overview").summary(folder, part(kind, "prepare").prepare(settings))


def kind_in_config(path: Path | None, changes: Sequence[str] = ()) -> str:
    """The kind of task that a config file is for."""
    return _kind(read_sections(path, changes))


def kind_of_folder(folder: Path) -> str:
    """The kind of task that a corpus, data, run or model folder belongs to: one of its files says it, or the files' names."""
    says = {"text.json": _kind_in_json, "corpus.json": _kind_in_json, "config.toml": kind_in_config}
    for path, read in ((folder / name, read) for name, read in says.items()):
        if path.is_file():
            with suppress(BathyError):  # a damaged file says nothing; what reads it says why
                if (kind := read(path)) in TASKS:
                    return kind
    named = (kind for kind in TASKS if any((folder / name).is_file() for name in part(kind, "settings").DATA_FILES))
    return next(named, DEFAULT)


def check_data_kind(folder: Path, kind: str) -> None:
    """Refuse to prepare for one task in the data folder of another, whose files would be lost; a damaged one says nothing."""
    found, path = kind, folder / "manifest.json"
    if path.is_file():
        with suppress(BathyError):
            found = _kind_in_json(path)
    if found != kind:
        raise ConfigError(f"{folder} holds data of the task {found}, not {kind}; choose a different folder with --out")


def _kind_in_json(path: Path) -> str:
    return str(read_json(path).get("kind", DEFAULT))


def _kind(values: dict[str, dict[str, Any]]) -> str:
    return str(values.get("task", {}).get("kind", DEFAULT))
