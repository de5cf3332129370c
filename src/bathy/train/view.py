"""What a person sees of a run: a table that renews itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from bathy import console

FIELDS: dict[str, tuple[str, str]] = {
    "loss": ("loss", ".3f"),
    "ppl": ("perplexity", ".2f"),
    "lr": ("learning rate", ".2e"),
    "tokens_per_second": ("tokens/s", ",.0f"),
    "mfu": ("of GEMM peak", ".0%"),
    "efficiency": ("real tokens", ".1%"),
    "scale": ("loss scale", "g"),
    "gradient_norm": ("gradient norm", ".3g"),
    "valid_loss": ("valid loss", ".3f"),
    "valid_ppl": ("valid perplexity", ".2f"),
    "eta": ("time left", ""),
}
"""Key of a metric to its label and format, in the order of display."""


def clock(seconds: float) -> str:
    """Seconds as 1:02:03, or 2:03 below an hour."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


class View:
    """Shows the newest value of every metric; `show` takes a row as it goes into the log, `labels` are the task's own."""

    def __init__(self, steps: int, labels: Mapping[str, tuple[str, str]] | None = None, quiet: bool = False) -> None:
        self.steps, self.fields, self.quiet, self.values = steps, FIELDS | dict(labels or {}), quiet, dict[str, Any]()
        self.losses: list[float] = []
        self._open = ExitStack()
        self._live: Live | None = None
        self._last = 0.0

    def __enter__(self) -> Self:
        if console.err.is_terminal and not self.quiet:
            self._live = self._open.enter_context(Live(console=console.err, auto_refresh=False))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def show(self, **row: Any) -> None:
        """Take up a row; a validation is always shown, a training row at most every ten seconds where there is no terminal."""
        self.values |= row
        if "loss" in row:
            self.losses.append(row["loss"])
        if self.quiet:
            return
        if self._live:
            self._live.update(self.table(), refresh=True)
        elif "valid_loss" in row or time.monotonic() - self._last >= console.PLAIN_EVERY:
            self._last = time.monotonic()
            console.err.print(self.line(row))

    def cells(self, values: dict[str, Any]) -> list[tuple[str, str]]:
        """Label and text of each metric that is there."""
        return [
            (label, clock(values[key]) if key == "eta" else escape(format(values[key], form)))
            for key, (label, form) in self.fields.items()
            if values.get(key) is not None
        ]

    def line(self, row: dict[str, Any]) -> str:
        """A row as one plain line."""
        return "  ".join([f"update {row['step']}/{self.steps}", *(f"{label} {text}" for label, text in self.cells(row))])

    def table(self) -> Table:
        """The newest values, two metrics a row, and the loss so far."""
        title = f"update {self.values.get('step', 0)} of {self.steps}, epoch {self.values.get('epoch', 0)}"
        caption = f"loss over time {console.spark(self.losses)}"
        table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", show_header=False)
        table.title_style, table.caption_style = "bold", "none"
        cells = self.cells(self.values)
        for _ in range(2):
            table.add_column()
            table.add_column(justify="right", min_width=10)
        for left, right in zip(cells[::2], [*cells[1::2], ("", "")], strict=False):
            table.add_row(*left, *right)
        return table
