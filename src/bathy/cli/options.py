"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting of the config; may be given several times."),
]
