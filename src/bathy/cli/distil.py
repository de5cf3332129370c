"""`bathy distil`: a small model that learns from a deep one's translations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import Set


def distil(
    config: Annotated[Path | None, typer.Argument(help="The student's TOML file; default: a 6-2 layer model.")] = None,
    teacher: Annotated[
        list[Path] | None, typer.Option(help="Run or model folder of the teacher; several form an ensemble (distil.teacher).")
    ] = None,
    raw: Annotated[Path | None, typer.Option(help="Raw text whose training sources are translated (distil.raw).")] = None,
    corpus: Annotated[Path | None, typer.Option(help="Folder for the teacher's translations; default: beside the run.")] = None,
    run: Annotated[Path | None, typer.Option(help="The student's run folder (train.run).")] = None,
    text_only: Annotated[bool, typer.Option(help="Write the corpus folder and stop before training.")] = False,
    set_: Set = None,
) -> None:
    """Translate the training sources with a teacher, then prepare and train a student on them. Stopped, it resumes.

    Example: bathy distil configs/multi30k_student.toml --teacher runs/multi30k_teacher --raw raw/multi30k
    """
    from bathy.settings import change
    from bathy.tasks import read_config
    from bathy.tasks.translation.distil import distil as distil_all
    from bathy.tasks.translation.distil import write_corpus
    from bathy.train.folder import run_folder

    flags = [change("train.run", run)] if run else []
    flags += [change("distil.raw", raw)] if raw else []
    flags += [change("distil.teacher", [str(path) for path in teacher])] if teacher else []
    beside = change("data.path", f"{run or 'runs/run'}-data")
    default = [] if config else ["model.encoder_layers=6", "model.decoder_layers=2", beside]
    settings = read_config(config, [*default, *flags, *(set_ or [])], needs="translation")
    place = run_folder(settings, config)
    text = corpus or place.with_name(f"{place.name}-text")
    if text_only:
        write_corpus(settings.distil, text)
    else:
        distil_all(settings, text, place)
