"""The demo's page: the story of three models, with figures, in one file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bathy.clinic.plots import FIGURES
from bathy.clinic.report import render_page
from bathy.errors import require
from bathy.files import origin, write_text
from bathy.settings import settings_to_toml
from bathy.tasks.translation.config import Config

if TYPE_CHECKING:
    from bathy.lab.demo import Story

SHOWN = {"scales": "before", "output_change": "before", "gradients": "before"}
"""Figures of the clinic that belong to the story."""


def write_page(path: Path, story: Story, config: Config) -> Path:
    """Write the page; returns its path."""
    charts = {name: chart for name in SHOWN if (chart := FIGURES[name](story.examination.readings)) is not None}
    charts["curves"] = curves(story.curves)
    text = render_page(
        "bathy.lab.demo",
        charts,
        story=story,
        layers=f"{config.model.encoder_layers} encoder and {config.model.decoder_layers} decoder layers",
        figures={name: (FIGURES[name].__doc__ or "").partition("\n")[0] for name in charts if name in FIGURES},
        origin=origin(seed=config.train.seed),
        config=settings_to_toml(config),
    )
    write_text(path, text)
    return path


def curves(rows: list[dict[str, Any]]) -> Any:
    """Training loss, validation loss and source gap over the updates, one line per model."""
    alt = require("altair", "clinic")
    names = {"nll": "training loss", "valid_loss": "validation loss", "source_gap": "source gap"}
    points = [
        {"model": row["model"], "update": row["step"], "panel": label, "value": row[key]}
        for row in rows
        for key, label in names.items()
        if row.get(key) is not None
    ]
    line = (
        alt.Chart(alt.Data(values=points))
        .mark_line(point=True)
        .encode(
            x=alt.X("update:Q"),
            y=alt.Y("value:Q", title="nats per token"),
            color=alt.Color("model:N", title=None),
            tooltip=["model:N", "update:Q", "value:Q"],
        )
    )
    return (
        line.properties(width=250, height=200)
        .facet(alt.Facet("panel:N", sort=list(names.values()), title=None), columns=3)
        .resolve_scale(y="independent")
    )
