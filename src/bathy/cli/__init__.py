"""The command line: one module per command, listed in COMMANDS. Heavy imports wait inside the commands' functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import typer

from bathy import console
from bathy.errors import ConfigError
from bathy.settings import shorten, unusable

COMMANDS: dict[str, str] = {
    "demo": "bathy.cli.demo",
    "corpus": "bathy.cli.corpus",
    "prepare": "bathy.cli.prepare",
    "data": "bathy.cli.data",
    "train": "bathy.cli.train",
    "watch": "bathy.cli.watch",
    "translate": "bathy.cli.translate",
    "sample": "bathy.cli.sample",
    "score": "bathy.cli.score",
    "export": "bathy.cli.export",
    "serve": "bathy.cli.serve",
    "predict": "bathy.cli.predict",
    "audit": "bathy.cli.audit",
    "distil": "bathy.cli.distil",
    "clinic": "bathy.cli.clinic",
    "postmortem": "bathy.cli.postmortem",
    "sweep": "bathy.cli.sweep",
    "ladder": "bathy.cli.ladder",
    "reproduce": "bathy.cli.reproduce",
    "bench": "bathy.cli.bench",
    "verify": "bathy.cli.verify",
    "doctor": "bathy.cli.doctor",
}
"""Command name to the module that holds a function of the same name; the order is that of `bathy --help`."""

app = typer.Typer(
    name="bathy",
    help="Train Transformers as deep as you like, and see why they fail when they do.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
USAGE_ERROR: Any = typer.BadParameter.__base__
"""What typer raises for a wrong option or argument, wherever its version has the class."""
_given: list[str] = []
"""The arguments as they were typed: typer makes the folder we are in of an empty path, as an unset variable leaves it."""


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"bathy {installed('bathy')}")
        raise typer.Exit


def checked(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which refuses empty paths, and numbers that are not finite or too large for NumPy and torch."""

    @wraps(command)
    def run(**values: Any) -> None:
        for name, value in values.items():
            if fault := unusable(value):
                raise ConfigError(f"--{name.strip('_').replace('_', '-')} is {shorten(value)}: {fault}")
            if "" in _given and Path() in (value if isinstance(value, list | tuple) else [value]):
                raise ConfigError(f"{name.strip('_').replace('_', '-')} is empty; name a file or folder ('.' is this one)")
        command(**values)

    return run


for _name, _module in COMMANDS.items():
    app.command(_name)(checked(getattr(import_module(_module), _name)))


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line; what a user can cause becomes one line on standard error and exit code 2."""
    _given[:] = sys.argv[1:] if args is None else args
    with console.ending():
        try:
            code = app(args, standalone_mode=False)  # else typer reports errors its own way, with what they repeat of secrets
        except USAGE_ERROR as error:
            _fail_usage(error)
        except typer.Abort as error:  # what typer makes of an EOFError
            raise EOFError from error
        except SystemExit as left:
            if isinstance(left.__context__, BrokenPipeError):  # typer's answer to it
                raise left.__context__ from None
            raise
    sys.exit(code or 0)


def _fail_usage(error: Any) -> NoReturn:
    """One line for an option or argument that is wrong; the help that stands there already needs none."""
    message = " ".join(error.format_message().split())
    if not message:
        sys.exit(2)
    console.fail(f"{message.rstrip('.')}; `{error.ctx.command_path if error.ctx else 'bathy'} --help` shows how it is used")
