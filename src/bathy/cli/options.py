"""Options that several commands share, and the check that an output can be written before any work begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting of the config; may be given several times."),
]
Paths = TypeVar("Paths", Path, Path | None, list[Path] | None)


def refuse_unused(context: typer.Context, names: Iterable[str], use: str) -> None:
    """An error if an option was given that has no effect in this use of the command: nothing given is ignored in silence."""
    from bathy.errors import ConfigError

    for option in context.command.params:
        source = context.get_parameter_source(option.name) if option.name in names else None
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"{option.opts[0]} has no effect on {use}; leave it out")


def output_file(value: Paths) -> Paths:
    """`callback=` of an option that names files to write: an error now, not after hours."""
    from bathy.files import check_output

    check_output(*_all(value))
    return value


def output_folder(value: Paths) -> Paths:
    """`callback=` of an option or argument that names folders to write."""
    from bathy.files import check_folder

    check_folder(*_all(value))
    return value


def _all(value: Path | Sequence[Path] | None) -> Sequence[Path | None]:
    return [value] if isinstance(value, Path) or value is None else value
