"""The command line: one module per command, listed in COMMANDS. Heavy imports wait inside the commands' functions."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from bathy.errors import BathyError, Diverged, explain, redact, system_error

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


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"bathy {installed('bathy')}")
        raise typer.Exit


for _name, _module in COMMANDS.items():
    app.command(_name)(getattr(import_module(_module), _name))


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line; what a user can cause becomes one line on standard error and exit code 2."""
    try:
        try:
            code = app(args, standalone_mode=False)  # else typer reports errors its own way, with what they repeat of secrets
        finally:
            sys.stdout.flush()
        sys.exit(code or 0)
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # typer's answer to it
            _leave_closed_pipe()
        raise
    except USAGE_ERROR as error:
        _fail_usage(error)
    except Diverged as error:
        if int(os.environ.get("RANK", "0")):  # all ranks of a run stop; the first one says why
            sys.exit(2)
        _fail(str(error))
    except BathyError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _leave_closed_pipe()
    except (OSError, EOFError, typer.Abort) as error:  # typer makes an Abort of an EOFError
        _silence()
        _fail(explain(error if isinstance(error, OSError) else EOFError()))
    except MemoryError as error:
        _fail(f"out of memory {error}; use a smaller model, batch or file, or a machine with more memory")
    except Exception as error:
        if cause := system_error(error):
            _fail(explain(cause))
        sys.stderr.write(redact(traceback.format_exc()))
        _fail("this is a bug in bathy, shown above; please report it", 1)


def _fail_usage(error: Any) -> NoReturn:
    """One line for an option or argument that is wrong; the help that stands there already needs none."""
    message = " ".join(error.format_message().split())
    if not message:
        sys.exit(2)
    _fail(f"{message.rstrip('.')}; `{error.ctx.command_path if error.ctx else 'bathy'} --help` shows how it is used")


def _fail(message: str, code: int = 2) -> NoReturn:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {escape(redact(message))}")
    sys.exit(code)


def _leave_closed_pipe() -> NoReturn:
    """The reader of our output left, e.g. `| head`."""
    _silence()
    sys.exit(141)


def _silence() -> None:
    """Send what is still to be printed nowhere, as it cannot be printed."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
