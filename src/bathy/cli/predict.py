"""`bathy predict`: whether a config, or any model that can be imported, will train, and up to which learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bathy.cli.imported import FUNCTION, import_model
from bathy.cli.options import Set, output_file

if TYPE_CHECKING:
    from bathy.clinic.forecast import Forecast


def predict(
    config: Annotated[Path | None, typer.Argument(help="TOML file, as for bathy train.")] = None,
    model: Annotated[str, typer.Option(help=f"{FUNCTION}; instead of a config.")] = "",
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; default: optim.lr, or 1e-3 with --model.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Warm-up updates; default: optim.warmup, or 0 with --model.")] = None,
    optimizer: Annotated[str, typer.Option(help="Optimiser of torch.optim, with --model.")] = "AdamW",
    look: Annotated[str, typer.Option(help="one look, rehearsal, or largest rate.")] = "largest rate",
    remedies: Annotated[str, typer.Option(help="Remedies to compare, with commas between.")] = "admin,scaled_init",
    out: Annotated[Path | None, typer.Option(callback=output_file, help="Also write the forecast as JSON.")] = None,
    set_: Set = None,
) -> None:
    """Say whether a model will train before any training: a few updates on a copy, and the odds that follow from them.

    Example: bathy predict configs/demo.toml --set optim.lr=3e-3
    """
    from bathy import console
    from bathy.errors import ConfigError

    if bool(config) == bool(model):
        raise ConfigError("bathy predict takes a config or --model package.module:function; give one of the two")
    asked = {"look": look, "remedies": [name for name in remedies.split(",") if name]}
    given = {"lr": lr, "warmup": warmup}
    rates = {name: value for name, value in given.items() if value is not None}
    if model:
        found = _of_model(model, optimizer, asked | rates)
    else:
        from bathy.tasks import read_config
        from bathy.tasks.foresight import predict_config

        found = predict_config(read_config(config, set_ or []), **asked | rates)
    if out:
        found.save(out)
    console.out.print(str(found), markup=False, highlight=False, soft_wrap=True)


def _of_model(name: str, optimizer: str, asked: dict[str, Any]) -> Forecast:
    """The forecast of what an imported function returns."""
    from bathy.clinic.predict import predict as forecast

    model, batch, loss = import_model(name)
    return forecast(model, batch, loss, optimizer=optimizer, **asked)
