"""The memory and hours on the page about scale-out are those of `bathy train --plan`."""

import re
from pathlib import Path

import pytest

from bathy.files import write_text
from bathy.nmt.config import read_config
from bathy.nmt.plan import Share, make_plan

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scale-out.md"
COLUMNS = ["config", "parameters", "1 GPU", "8 GPUs, DDP", "8 GPUs, FSDP2", "64 GPUs, DDP", "64 GPUs, FSDP2"]


def cell(share: Share) -> str:
    return f"{share.tokens} × {share.accumulate}, {(share.states + share.activations) / 1e9:.3g} GB, {share.hours:.3g} h"


def by_number(config: Path) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", config.stem)]


def row(config: Path) -> list[str]:
    plan = make_plan(read_config(config))
    return [f"`{config.stem}`", f"{plan.parameters / 1e6:.0f} M", *map(cell, plan.shares)]


@pytest.mark.slow
def test_the_table_on_the_page_is_the_plan() -> None:
    configs = sorted((ROOT / "configs").glob("*14_*.toml"), key=by_number)
    rows = [COLUMNS, ["---"] * len(COLUMNS), *map(row, configs)]
    page = PAGE.read_text(encoding="utf-8")
    head, begin, rest = page.partition("<!-- table: written by tests/slow/test_scale_out.py -->\n")
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    written = f"{head}{begin}{table}{rest[rest.index('<!-- end of table -->') :]}"
    if page != written:
        write_text(PAGE, written)
    assert page == written, f"{PAGE.name} was out of date and has been written anew: commit it"
