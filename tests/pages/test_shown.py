"""What people look at in a notebook shows itself there, with every name escaped."""

from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest
import tiny
import torch
from rich.table import Table

import bathy
from bathy.console import table
from bathy.pages.shown import as_html

NASTY = "<img src=x onerror=alert(1)>"


@cache
def things() -> dict[str, Any]:
    model = tiny.model("post_ln", (2, 2))
    batch = tiny.batch(model)
    plain = torch.nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
    return {
        "Examination": bathy.examine(model, batch, name=NASTY, exams=("activations",)),
        "Profile": bathy.profile(model, batch),
        "Forecast": bathy.predict(model, batch, look="one look", remedies=()),
        "Audit": bathy.audit(model, batch),
        "Sites": bathy.find_sites(plain, (torch.randn(2, 5, 16), torch.randn(2, 4, 16))),
    }


class Cells(HTMLParser):
    """Counts elements, and checks that each is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["Examination", "Profile", "Forecast", "Audit", "Sites"])
def test_it_shows_a_table_row_for_row_of_what_it_prints(name: str) -> None:
    thing = things()[name]
    cells = Cells()
    cells.feed(thing._repr_html_())
    tables = [part for part in thing.parts() if isinstance(part, Table)]
    assert type(thing).__name__ == name and not cells.open and cells.count["table"] == len(tables) >= 1
    assert cells.count["tr"] == sum(1 + part.row_count for part in tables) and set(cells.count).isdisjoint({"img", "script"})
    assert str(thing) and all(text in str(thing) for text in thing.parts() if isinstance(text, str))


def test_names_are_escaped_and_markup_is_plain() -> None:
    text = as_html([NASTY, table(NASTY, ["[bold]"], [(NASTY,), ("[red]x",)])])
    assert "<img" not in text and text.count("&lt;img src=x") == 3 and "[red]x" in text and "[bold]" in text
