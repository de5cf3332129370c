"""`bathy distil`: a teacher translates the training sources, a student learns from its translations (Kim and Rush, 2016).

    raw/train.de ──teacher──▶ .work/teacher-KEY/00000.json … ──select──▶ a corpus folder ──prepare──▶ data/ ──fit──▶ run/

Every stage is resumed where it stopped. The corpus folder is plain text: train.de, train.en and the other splits as they were.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from bathy import console
from bathy.errors import ConfigError, DataError
from bathy.files import check_folder, explained, lock_folder, read_json
from bathy.tasks.lines import read_lines
from bathy.tasks.models import home
from bathy.tasks.translation.corpora.layout import PairFile, describe, splits
from bathy.tasks.translation.data import read_manifest
from bathy.tasks.translation.distil.select import select
from bathy.tasks.translation.distil.teacher import Taught, fingerprint, read_shard, shards, translate_all
from bathy.tasks.translation.distil_settings import DistilConfig
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.translate import decode_settings

__all__ = ["DistilConfig", "distil", "prepare_text", "write_corpus"]


def distil(config: Any, corpus: Path, run: Path) -> None:
    """Translate, select, prepare and train: the student of `config` in `run`, its text in `corpus`."""
    from bathy.tasks import make_task
    from bathy.train.loop import fit

    check_folder(run)
    settings = prepare_text(config, corpus)
    fit(make_task(settings), settings, run)


def prepare_text(config: Any, corpus: Path) -> Any:
    """Translate, select and prepare: all that comes before training; returns the settings to train with."""
    from bathy.tasks.translation.prepare import prepare

    check_folder(corpus, config.data.folders[0])
    _check_data(config.data.folders[0], corpus)
    write_corpus(config.distil, corpus)
    text = config.prepare.model_copy(update={"raw": str(corpus), **_languages(config)})
    settings = config.model_copy(update={"prepare": text})
    prepare(settings)
    return settings


def write_corpus(config: DistilConfig, corpus: Path) -> dict[str, Any]:
    """The corpus folder that the teacher's translations make; returns what `corpus.json` says."""
    teachers, found, (source, target) = _check(config)
    _check_corpus(corpus, Path(config.raw))
    similar = config.choose == "similar"
    changes = {"beam": config.beam, "n_best": min(config.n_best, config.beam) if similar else 1}
    decode = decode_settings(teachers[0], **changes)
    with explained(corpus), lock_folder(corpus):
        folder = corpus / ".work" / f"teacher-{fingerprint(teachers, decode, config.shard, config.batch)}"
        jobs = list(shards(found["train"][0], folder, teachers, decode, config.shard, config.batch))
        references = list(read_lines(found["train"][1]))
        if sum(len(job.lines) for job in jobs) != len(references):
            raise DataError(
                f"{found['train'][0]} has {sum(len(job.lines) for job in jobs)} lines, {found['train'][1]} {len(references)}; "
                "they cannot be translations of each other, line by line"
            )
        translate_all(jobs, config.workers)
        rows = [row for job in jobs for row in read_shard(job)]
        return _write(corpus, found, (source, target), rows, references, config, decode)


def _write(
    corpus: Path,
    found: dict[str, tuple[Path, Path]],
    languages: tuple[str, str],
    rows: list[Taught],
    references: list[str],
    config: DistilConfig,
    decode: Decode,
) -> dict[str, Any]:
    pairs, dropped = select(rows, references, config)
    if not pairs:
        raise DataError(
            f"no pair is left: {', '.join(f'{n} {why}' for why, n in dropped.items())}; change the [distil] section"
        )
    if config.keep_original:
        pairs += [(row.source, reference) for row, reference in zip(rows, references, strict=True)]
    with PairFile(corpus, "train", *languages) as file:
        for source, target in pairs:
            file.write(source.encode(), target.encode())
    for split, paths in found.items():
        if split != "train":
            for path, language in zip(paths, languages, strict=True):
                shutil.copyfile(path, corpus / f"{split}.{language}{path.suffix if path.suffix != f'.{language}' else ''}")
    _report(rows, dropped)
    facts: dict[str, Any] = {"distil": config.model_dump(), "decode": decode.model_dump(), "dropped": dict(dropped)}
    return describe(corpus, f"distilled from {', '.join(Path(name).name for name in config.teacher)}", *languages, **facts)


def _report(rows: list[Taught], dropped: Counter[str]) -> None:
    left_out = "".join(f", {n} dropped ({why})" for why, n in sorted(dropped.items()))
    console.err.print(f"the teacher translated {len(rows)} lines{left_out}", markup=False)


def _check(config: DistilConfig) -> tuple[tuple[Path, ...], dict[str, tuple[Path, Path]], tuple[str, str]]:
    """The teachers' folders, the raw splits, and the languages."""
    if not config.teacher:
        raise ConfigError("distil.teacher is missing; it names the run or model folder whose translations are learned from")
    if not config.raw:
        raise ConfigError("distil.raw is missing; it gives the folder of raw text whose training sources are translated")
    teachers = tuple(Path(name) for name in config.teacher)
    text = Codec.load(home(teachers[0])).config
    return teachers, splits(Path(config.raw), text.source, text.target), (text.source, text.target)


def _check_corpus(folder: Path, raw: Path) -> None:
    """Refuse to write over text that is not a teacher's: the raw text itself, most likely."""
    text = folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())
    described = folder / "corpus.json"
    ours = any(folder.glob(".work/teacher-*")) or (described.exists() and "distil" in read_json(described))
    if folder.resolve() == raw.resolve() or (text and not ours):
        raise ConfigError(f"{folder} holds other text, which the teacher's would replace; choose a different folder: --corpus")


def _check_data(folder: Path, corpus: Path) -> None:
    """Refuse to put the student's text where other text is prepared: the teacher's, most likely."""
    if not (folder / "manifest.json").exists():
        return
    raw = read_manifest(folder)["settings"]["prepare"]["raw"]
    if Path(raw).resolve() != corpus.resolve():
        raise ConfigError(
            f"data.path is {folder}, which holds text prepared from {raw}; give the student its own, "
            f"for example --set data.path={folder.with_name(f'{folder.name}-distilled')}"
        )


def _languages(config: Any) -> dict[str, str]:
    text = Codec.load(home(Path(config.distil.teacher[0]))).config
    return {"source": text.source, "target": text.target}
