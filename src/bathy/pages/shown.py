"""What prints as text and shows itself in a notebook, from the same parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from typing import ClassVar

from rich.table import Table
from rich.text import Text

from bathy.console import as_text

Part = str | Table


class Shown(ABC):
    """Has parts: lines of text and tables. `print` gives them as text, Jupyter as HTML in which every name is escaped."""

    width: ClassVar[int] = 120
    """Columns of the printed tables."""

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """What is shown, in order."""

    def __str__(self) -> str:
        return "\n".join(part if isinstance(part, str) else as_text(part, self.width) for part in self.parts())

    def _repr_html_(self) -> str:
        return as_html(self.parts())


def as_html(parts: Sequence[Part]) -> str:
    """Lines as paragraphs, tables as tables with captions; no style of its own, so that it looks like the notebook."""
    return "\n".join(f"<p>{escape(part)}</p>" if isinstance(part, str) else _table(part) for part in parts)


def _table(table: Table) -> str:
    columns = [(_plain(column.header), column.justify, [_plain(cell) for cell in column.cells]) for column in table.columns]
    head = "".join(f'<th scope="col">{header}</th>' for header, _, _ in columns)
    rows = zip(*([f'<td style="text-align: {side}">{cell}</td>' for cell in cells] for _, side, cells in columns), strict=True)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    caption = f"<caption>{_plain(table.title)}</caption>" if table.title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _plain(cell: object) -> str:
    """The text of a cell without rich's markup, escaped."""
    return escape(cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain)
