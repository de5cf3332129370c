"""`bathy ladder`: which scheme carries which depth, up to which learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import Set, output_folder


def ladder(
    config: Annotated[Path, typer.Argument(help="TOML file of a run; its depth, scheme, rate and seed are replaced.")],
    raw: Annotated[
        Path | None, typer.Option(help="Your own text instead of the config's, as `bathy prepare` takes it; goes to OUT/data.")
    ] = None,
    depths: Annotated[str, typer.Option(help="Layers of each stack, with commas between.")] = "6,12,24,48",
    schemes: Annotated[str, typer.Option(help="Rows of bathy.SCHEMES, with commas between.")] = "post_ln,pre_ln,admin",
    rates: Annotated[str, typer.Option(help="Learning rates, with commas between.")] = "3e-4,1e-3,3e-3",
    seeds: Annotated[str, typer.Option(help="Seeds, with commas between.")] = "1111",
    out: Annotated[Path, typer.Option(callback=output_folder, help="Folder of the runs and the page.")] = Path("ladder"),
    storage: Annotated[str, typer.Option(help="SQLAlchemy URL to share the ladder among machines.")] = "",
    workers: Annotated[int, typer.Option(min=1, help="Processes on this machine, each with its share of the cores.")] = 1,
    plan: Annotated[
        bool, typer.Option(help="Time a few updates of each depth and scheme and print what all would cost.")
    ] = False,
    publish: Annotated[
        Path | None,
        typer.Option(help="Copy table, pictures and outcomes beside this page and update it; runs kept there are not trained."),
    ] = None,
    set_: Set = None,
) -> None:
    """Train every depth × scheme × rate × seed of a config and draw what comes out; the same command again resumes.

    Example: bathy ladder configs/multi30k_tiny.toml --depths 6,12,24 --schemes post_ln,pre_ln,admin --rates 1e-3,3e-3 --plan

    Example: bathy ladder configs/lm_tinyshakespeare_ladder.toml --raw my_texts --out ladder/mine --plan
    """
    from bathy import console
    from bathy.lab.ladder.gather import restore
    from bathy.lab.ladder.ladder import Ladder, climb, numbers
    from bathy.lab.ladder.ladder import plan as make_plan
    from bathy.lab.ladder.page import report
    from bathy.lab.ladder.publish import kept
    from bathy.lab.ladder.publish import publish as update
    from bathy.settings import change
    from bathy.tasks import prepare_data

    own = [change("prepare.raw", raw), change("data.path", out / "data")] if raw else []
    names = tuple(name.strip() for name in schemes.split(",") if name.strip())
    chosen = tuple(rate.strip() for rate in rates.split(",") if rate.strip())
    settings = (*(set_ or ()), *own)
    whole = Ladder(config, numbers(depths, "depths"), names, chosen, numbers(seeds, "seeds", least=0), out, settings)
    if raw:
        console.out.print(prepare_data(config, settings))
    if plan:
        rows = make_plan(whole)
        columns = ["layers", "scheme", "CPU-s per update", "runs", "core-hours"]
        cells = [(row["layers"], row["scheme"], row["seconds"], row["runs"], row["hours"]) for row in rows]
        console.out.print(console.table(f"{sum(row['hours'] for row in rows):.1f} core-hours in all", columns, cells))
        return
    if publish is not None:
        restore(whole, kept(publish, out))
    climb(whole, storage, workers)
    found = report(whole, storage)
    if publish is not None:
        update(out, publish)
    columns = ["scheme", "layers", "best loss", "best rate", "largest rate that trains", "trained", "runs", "core-hours"]
    best = {r: (r.loss, r.best_rate, r.largest_rate) if r.seeds else ("none trains", "–", "–") for r in found}
    rows_ = [(r.scheme, r.layers, *best[r], r.trained, r.runs, r.hours) for r in found]
    console.out.print(console.table(f"ladder in {out}", columns, rows_))
    console.out.print(f"report: {out / 'report.html'}")
