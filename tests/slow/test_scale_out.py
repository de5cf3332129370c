"""The memory and hours on the page about scale-out are those of `bathy train --plan`."""

import re
from pathlib import Path

import pytest

from bathy.files import write_text
from bathy.tasks import make_task, read_config
from bathy.train.plan import Share, make_plan

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scale-out.md"
COLUMNS = ["config", "parameters", "1 GPU", "8 GPUs, DDP", "8 GPUs, FSDP2", "64 GPUs, DDP", "64 GPUs, FSDP2"]


def cell(share: Share) -> str:
    return f"{share.tokens} × {share.accumulate}, {(share.states + share.activations) / 1e9:.3g} GB, {share.hours:.3g} h"


def by_number(config: Path) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", config.stem)]


def row(config: Path) -> list[str]:
    settings = read_config(config)
    plan = make_plan(make_task(settings), settings)
    return [f"`{config.stem}`", f"{plan.parameters / 1e6:.0f} M", *map(cell, plan.shares)]


def pages() -> tuple[str, str]:
    """The page as it is, and as the plans make it."""
    configs = sorted((ROOT / "configs").glob("*14_*.toml"), key=by_number)
    rows = [COLUMNS, ["---"] * len(COLUMNS), *map(row, configs)]
    page = PAGE.read_text(encoding="utf-8")
    head, begin, rest = page.partition("<!-- table: written by tests/slow/test_scale_out.py -->\n")
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    return page, f"{head}{begin}{table}{rest[rest.index('<!-- end of table -->') :]}"


@pytest.mark.slow
def test_the_table_on_the_page_is_the_plan() -> None:
    page, expected = pages()
    assert page == expected, f"{PAGE.name} is out of date; write it with: python tests/slow/test_scale_out.py"


if __name__ == "__main__":
    write_text(PAGE, pages()[1])
