"""`bathy audit`: which scheme a model really is, and where its code deviates from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.imported import FUNCTION, import_model
from bathy.cli.options import output_file


def audit(
    model: Annotated[str, typer.Option(help=f"{FUNCTION}.")],
    without: Annotated[str, typer.Option(help="Deviations to leave out, with commas between.")] = "",
    out: Annotated[Path | None, typer.Option(callback=output_file, help="Also write the audit as JSON.")] = None,
) -> None:
    """Say which scheme a model is, site by site, from its behaviour before training, and list where it deviates.

    Example: bathy audit --model my_package.models:build
    """
    from bathy import console
    from bathy.clinic.audit import audit as audit_model

    built, batch, _ = import_model(model)
    found = audit_model(built, batch, without=[name for name in without.split(",") if name])
    if out:
        found.save(out)
    console.out.print(str(found), markup=False, highlight=False, soft_wrap=True)
