"""The first ten minutes: three deep models, examined before training, trained side by side, translating, and explained."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bathy import console
from bathy.admin.profile import needs_profile
from bathy.admin.remedies import stabilise_
from bathy.clinic.examination import Examination, examine
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.files import origin, write_json
from bathy.lab.demo.page import write_page
from bathy.lab.demo.race import race, stopped
from bathy.settings import change, settings_to_toml
from bathy.tasks import read_config
from bathy.tasks.foresight import predict_config
from bathy.tasks.lines import read_texts
from bathy.tasks.translation.batches import Batches, open_splits
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.corpora.toy import write_toy
from bathy.tasks.translation.export import export
from bathy.tasks.translation.prepare import prepare
from bathy.tasks.translation.score import Score, score
from bathy.tasks.translation.translate import Translator, decode_settings
from bathy.train.log import read_log

NAMES = {"post_ln": "Post-LN", "pre_ln": "Pre-LN", "admin": "Admin"}
SHOWN = 4
"""Sentences whose translations are printed."""
QUICK = [
    "model.width=64",
    "model.ffn=128",
    "model.decoder_layers=1",
    "train.steps=300",
    "train.valid_every=100",
    "train.save_every=100",
]
HASTY = "--quick trains smaller models for 300 updates: enough for predictions and curves, too few to translate."
EXPORTS = {"ctranslate2": "CTranslate2", "marian": "Hugging Face Marian"}


@dataclass
class Story:
    """What the demo found, for the page and the terminal."""

    examination: Examination
    forecasts: dict[str, float]
    """Scheme to the probability that its training fails, said before training."""
    curves: list[dict[str, Any]] = field(default_factory=list)
    stops: dict[str, str] = field(default_factory=dict)
    scores: list[Score] = field(default_factory=list)
    samples: list[dict[str, str]] = field(default_factory=list)
    exports: list[tuple[str, str]] = field(default_factory=list)
    note: str = ""
    """What a reader must know of this demo in particular."""

    def by_model(self) -> dict[str, list[dict[str, Any]]]:
        """The curves, model by model."""
        return {label: [row for row in self.curves if row["model"] == label] for label in NAMES.values()}

    def last(self, name: str) -> dict[str, Any]:
        """A model's last validation, or its last row of any kind."""
        rows = self.by_model()[NAMES[name]]
        return next((row for row in reversed(rows) if "valid_loss" in row), rows[-1] if rows else {})

    def bleu(self, name: str) -> float | None:
        """A model's BLEU on the test sentences."""
        return next((row.score for row in self.scores if row.system == NAMES[name] and row.metric == "bleu"), None)


def demo(folder: Path, quick: bool) -> Path:
    """Run everything in a folder; returns the page. Run again, it resumes where it stopped."""
    torch.set_num_threads(os.cpu_count() or 1)
    config = settings(folder, quick)
    _say(1, "A German–English corpus from a small grammar, and its tokens")
    if not (folder / "raw" / "corpus.json").exists():
        write_toy(folder / "raw")
    prepare(config)
    _say(2, "Three deep models, examined before any training")
    story = examine_models(config)
    story.note = HASTY if quick else ""
    _say(3, "The same learning rate and schedule for all three, side by side")
    runs = race(folder / "demo.toml", {name: _scheme(name) for name in NAMES}, folder / "runs", at_once=os.cpu_count() or 1)
    read_curves(story, runs)
    _say(4, "What they make of sentences they have never seen")
    translate_test(story, runs, folder / "raw")
    _say(5, "ω folded away, and the model handed to other engines")
    export_model(story, runs["admin"], folder / "model")
    page = write_page(folder / "report.html", story, config)
    write_json(
        folder / "scores.json", {"scores": [vars(row) for row in story.scores], "origin": origin(seed=config.train.seed)}
    )
    console.out.print(story.note)
    _farewell(page, folder)
    return page


def settings(folder: Path, quick: bool) -> Config:
    """The demo's config, with its paths in the folder, also written there for `bathy train`."""
    paths = [change("data.path", folder / "data"), change("prepare.raw", folder / "raw")]
    config = read_config(Path(__file__).parent / "demo.toml", [*paths, *(QUICK if quick else [])])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.toml").write_text(settings_to_toml(config), encoding="utf-8")
    return config


def _scheme(name: str) -> list[str]:
    return [f"model.encoder_scheme={name}", f"model.decoder_scheme={name}"]


def examine_models(config: Config) -> Story:
    """The three models as training will start them: examined on the first batch, and forecast by a rehearsal on copies."""
    splits = open_splits(config.data)
    batch = Batches(splits, config.train.tokens, config.train.seed).batch(0)
    examination, forecasts = Examination([]), {}
    for name, label in NAMES.items():
        torch.manual_seed(config.train.seed)
        schemes = {"encoder_scheme": name, "decoder_scheme": name}
        own = config.model_copy(update={"model": config.model.model_copy(update=schemes)})
        model = Transformer(TransformerConfig(vocab=splits[0].manifest["vocab"], **own.model.model_dump()))
        if needs_profile(model):
            stabilise_(model, (batch.source, batch.target_in))
        one = examine(model, (batch.source, batch.target_in), name=label)
        examination = examination + one
        forecasts[name] = predict_config(own, look="rehearsal", remedies=()).failure
        said = "will fail" if forecasts[name] > 0.5 else "will train"
        console.out.print(f"  {label:8} {said} ({forecasts[name]:.0%} chance of failing): {one.findings[0].title}")
    return Story(examination, forecasts)


def read_curves(story: Story, runs: dict[str, Path]) -> None:
    """Curves and early stops of the runs."""
    for name, run in runs.items():
        story.curves += [{"model": NAMES[name], **row} for row in read_log(run / "metrics.jsonl")]
        story.stops[name] = stopped(run)
        last = [row for row in story.curves if row["model"] == NAMES[name] and "valid_loss" in row][-1]
        ended = f"; stopped early: {story.stops[name]}" if story.stops[name] else ""
        console.out.print(
            f"  {NAMES[name]:8} update {last['step']}: validation loss {last['valid_loss']:.2f}, "
            f"source gap {last['source_gap']:.2f}{ended}"
        )


def translate_test(story: Story, runs: dict[str, Path], raw: Path) -> None:
    """Translations of the test split by each model, a few shown, all scored."""
    source, reference = read_texts(raw / "test.de"), read_texts(raw / "test.en")
    outputs: dict[str, list[str]] = {}
    for name, run in runs.items():
        decode = decode_settings(run)
        if story.stops[name]:  # too short for an average of its checkpoints to be itself
            decode = decode.model_copy(update={"average": 1})
        translator = Translator.load([run], decode)
        outputs[NAMES[name]] = [one.texts[0] for one in translator.translate(source)]
    story.scores = score(outputs, [reference], ["bleu", "chrf"], samples=0)
    story.samples = [
        {"German": source[i], "English": reference[i], **{name: lines[i] for name, lines in outputs.items()}}
        for i in range(SHOWN)
    ]
    for sample in story.samples:
        console.out.print("\n" + "\n".join(f"  {who:8} {text}" for who, text in sample.items()))
    rows = [(row.system, row.metric, row.score, row.signature) for row in story.scores]
    console.out.print(
        console.table(f"scores on {len(source)} unseen sentences", ["model", "metric", "score", "signature"], rows)
    )


def export_model(story: Story, run: Path, out: Path) -> None:
    """The folded model written for other engines, each compared with bathy on the same sentences."""
    for target, label in EXPORTS.items():
        if not (out / target).exists():
            measure, found = export(run, target, out / target, decode_settings(run))
            story.exports += [
                (
                    label,
                    f"beam {one.beam}: {one.identical} of {one.sentences} translations identical, {one.ties} ties, "
                    f"{one.cut} cut off at the longest length; largest difference of {measure} {one.distance:.1e}",
                )
                for one in found
            ]
    for label, text in story.exports:
        console.out.print(f"  {label}: {text}")


def _say(number: int, text: str) -> None:
    console.out.print(f"\n[bold]{number}. {text}[/]")


def _farewell(page: Path, folder: Path) -> None:
    console.out.print(f"\n[bold]The whole story, with figures: {page.resolve()}[/]")
    console.out.print("Try next:")
    console.out.print(f'  echo "Der alte Mann liest ein Buch." | bathy translate {folder}/runs/admin')
    console.out.print("  bathy reproduce --list")
    console.out.print("  bathy corpus folder …      your own text, then bathy prepare, bathy train")
