"""What a person sees: tables, progress (a bar on a terminal, plain lines elsewhere), and errors as one line."""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, NoReturn, Protocol, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from bathy.errors import BathyError, Diverged, explain, redact, system_error

T = TypeVar("T")

PIPED_WIDTH = 160
"""Columns of a table where there is no terminal to ask."""


def _console(stream: IO[str], stderr: bool) -> Console:
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    return Console(stderr=stderr, soft_wrap=True, highlight=False, width=width)


out = _console(sys.stdout, stderr=False)
"""Results go here."""
err = _console(sys.stderr, stderr=True)
"""Progress and warnings go here, so that results can be piped."""


def warn(text: str) -> None:
    """A warning, on standard error."""
    err.print(f"[yellow]warning:[/] {escape(redact(text))}")


def fail(message: str, code: int = 2) -> NoReturn:
    """End the process with one line on standard error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {escape(redact(message))}")
    sys.exit(code)


@contextmanager
def ending() -> Iterator[None]:
    """A block that ends its process as a command ends: what a user can cause is one line and exit code 2."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except Diverged as error:
        if int(os.environ.get("RANK", "0")):  # all ranks of a run stop; the first one says why
            sys.exit(2)
        fail(str(error))
    except BathyError as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output left, e.g. `| head`
        _silence()
        sys.exit(141)
    except (OSError, EOFError) as error:
        _silence()
        fail(explain(error))
    except MemoryError as error:
        fail(f"out of memory {error}; use a smaller model, batch or file, or a machine with more memory")
    except Exception as error:
        if cause := system_error(error):
            fail(explain(cause))
        sys.stderr.write(redact(traceback.format_exc()))
        fail("this is a bug in bathy, shown above; please report it", 1)


def _silence() -> None:
    """Send what is still to be printed nowhere, as it cannot be printed."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_EVERY = 10.0
"""Seconds between progress lines where there is no terminal."""


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of plain values: text to the left, numbers to the right."""
    rows = [list(row) for row in rows]
    result = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for i, name in enumerate(columns):
        numeric = all(isinstance(row[i], int | float) for row in rows)
        result.add_column(escape(name), justify="right" if numeric else "left")
    for row in rows:
        result.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else escape(str(cell)) for cell in row))
    return result


def spark(values: Sequence[float], width: int = 30) -> str:
    """The values as a line of blocks, highest to lowest of their own range; those that are not finite are left out."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    chosen = [finite[i * len(finite) // width] for i in range(width)] if len(finite) > width else finite
    low, span = min(chosen), max(chosen) - min(chosen) or 1.0
    return "".join(BLOCKS[round((value - low) / span * (len(BLOCKS) - 1))] for value in chosen)


def as_text(renderable: Table, width: int = 120) -> str:
    """A renderable as plain text, for `print(profile)` and for files."""
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().rstrip()


class Advance(Protocol):
    """Says how far a task has come: `advance(n)` for n more units, with an optional note such as the current loss."""

    def __call__(self, n: float = 1, note: str = "") -> None: ...


@contextmanager
def progress(label: str, total: float | None = None, delay: float = 1.0) -> Iterator[Advance]:
    """Progress of one long task with elapsed time and time left; silent when it ends within `delay` seconds."""
    with _bar(label, total, delay) if err.is_terminal else _lines(label, total, delay) as advance:
        yield advance


def track(items: Sequence[T], label: str) -> Iterator[T]:
    """The items one by one, with progress."""
    with progress(label, len(items)) as advance:
        for item in items:
            yield item
            advance()


@contextmanager
def _bar(label: str, total: float | None, delay: float) -> Iterator[Advance]:
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    columns += [TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}")]
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(label, total=total, note="", visible=delay <= 0)
        start = time.monotonic()

        def advance(n: float = 1, note: str = "") -> None:
            bar.update(task, advance=n, visible=time.monotonic() - start >= delay)
            if note:
                bar.update(task, note=note)

        yield advance


@contextmanager
def _lines(label: str, total: float | None, delay: float) -> Iterator[Advance]:
    start = last = time.monotonic()
    done = 0.0

    def advance(n: float = 1, note: str = "") -> None:
        nonlocal done, last
        done += n
        now = time.monotonic()
        if now - start >= delay and now - last >= PLAIN_EVERY:
            last = now
            left = f", {(now - start) / done * (total - done):.0f} s left" if total and done else ""
            of = f"/{total:g}" if total else ""
            err.print(f"{label}: {done:g}{of}, {now - start:.0f} s{left}{'  ' + note if note else ''}")

    yield advance
