"""The command line: one module a command, listed in COMMANDS. Heavy imports wait inside the commands' functions."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from bathy.errors import BathyError

COMMANDS: dict[str, str] = {
    "demo": "bathy.cli.demo",
    "corpus": "bathy.cli.corpus",
    "prepare": "bathy.cli.prepare",
    "data": "bathy.cli.data",
    "train": "bathy.cli.train",
    "translate": "bathy.cli.translate",
    "score": "bathy.cli.score",
    "export": "bathy.cli.export",
    "clinic": "bathy.cli.clinic",
    "sweep": "bathy.cli.sweep",
    "reproduce": "bathy.cli.reproduce",
    "bench": "bathy.cli.bench",
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


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"bathy {installed('bathy')}")
        raise typer.Exit


for _name, _module in COMMANDS.items():
    app.command(_name)(getattr(import_module(_module), _name))


def main(args: list[str] | None = None) -> Any:
    """Run the command line; what a user got wrong becomes one line on standard error and exit code 2."""
    try:
        return app(args)
    except BathyError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output left, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
