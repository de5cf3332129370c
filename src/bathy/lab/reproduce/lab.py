"""The lab: data, models and runs of one scale, each made once and shared by all items."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bathy.admin.profile import needs_profile
from bathy.admin.remedies import stabilise_
from bathy.clinic import readings
from bathy.clinic.readings import Reading
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import ConfigError, InUse
from bathy.files import origin, when_free
from bathy.lab.reproduce.item import Measured
from bathy.lab.reproduce.recipes import recipe
from bathy.lab.reproduce.scale import Scale
from bathy.lab.reproduce.spec import Spec
from bathy.lab.runs import Run, chance_of_difference, ended, read_run, train_if_needed
from bathy.settings import change
from bathy.tasks.translation.batches import Batches
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.corpora.toy import write_toy
from bathy.tasks.translation.data import Split, read_manifest
from bathy.tasks.translation.prepare import prepare

SEEDS = (1111, 2222, 3333, 4444, 5555)
"""The paper's."""
CORPORA = {"iwslt": "iwslt14.de-en", "ende": "wmt14.en-de", "enfr": "wmt14.en-fr"}
"""Folders of --data where each dataset has its own."""


@dataclass(frozen=True, eq=False)
class Lab:
    """Where items of one scale find what they need."""

    scale: Scale
    out: Path
    """Folder of data, runs and results."""
    raw: Path | None = None
    """What the user gave as --data."""
    seeds: int = 1
    """Seeds of what is trained."""
    kept: Path | None = None
    """Outcomes of runs that were trained anywhere, one folder per run, as they are published."""
    train: tuple[str, ...] = ("*",)
    """Names of the runs that may be trained, as shell patterns; other runs count if they are finished."""
    used: dict[str, Config] = field(default_factory=dict)
    """Configs that were asked for, by the name of their run."""
    before: set[str] = field(default_factory=set)
    """Those of them whose run had been trained before."""
    made: set[str] = field(default_factory=set)
    """Those whose run was trained now."""
    missing: set[str] = field(default_factory=set)
    """Those whose run is not finished, because `train` does not name it or another process works on it."""
    facts: dict[str, str] = field(default_factory=dict)
    """What else belongs to a result, such as BLEU's signature."""

    @property
    def seed_list(self) -> Sequence[int]:
        """Seeds of runs: the paper's five, then more in the same fashion."""
        return [SEEDS[i] if i < len(SEEDS) else 1111 * (i + 1) for i in range(self.seeds)]

    def settings(self) -> dict[str, Any]:
        """What a result depends on, besides the code."""
        manifest = read_manifest(self.data)
        return {"scale": self.scale.name, "seeds": self.seeds, "data": manifest["keys"]}

    def forget(self) -> None:
        """Begin an item: nothing has been asked for yet."""
        for known in (self.used, self.before, self.made, self.missing, self.facts):
            known.clear()

    def command(self, item: str) -> str:
        """The command that makes an item's result."""
        data = f" --data {self.raw.name}" if self.raw is not None else ""
        seeds = f" --seeds {self.seeds}" if self.seeds > 1 else ""
        return f"bathy reproduce {item} --scale {self.scale.name}{data}{seeds}"

    @cached_property
    def data(self) -> Path:
        """The data folder of what is examined without training, and of most runs."""
        return self.data_of("ende")

    @cache  # noqa: B019 - a lab lives as long as the command
    def data_of(self, dataset: str, *changes: str) -> Path:
        """The prepared data folder that stands for a dataset; made from the toy corpus or from --data where it is not there.

        Text that is prepared otherwise, by `prepare.key=value` changes, has a folder of its own.
        """
        if self.raw is not None and (self.raw / "manifest.json").exists():
            if changes:
                raise ConfigError(f"--data {self.raw} is prepared already; a run with {', '.join(changes)} needs the raw text")
            return self.raw
        if self.raw is None and self.scale.data:
            raise ConfigError(f"--scale {self.scale.name} needs --data: {self.scale.data}")
        name = self.scale.configs[dataset]
        raw = self._toy() if self.raw is None else self.raw / CORPORA[dataset] if self.scale.apart else self.raw
        folder = self.out / "data" / ",".join([name, *changes])
        config = recipe(name, [change("data.path", folder), change("prepare.raw", raw), *changes])
        when_free(lambda: prepare(config))
        return folder

    def _toy(self) -> Path:
        folder = self.out / "raw"
        if not (folder / "corpus.json").exists():
            when_free(lambda: write_toy(folder, size=8000, held_out=300))
        return folder

    def config(self, spec: Spec, seed: int) -> Config:
        """The resolved config of a run."""
        apart = f"{spec.dataset}_" if self.scale.apart else ""
        run = self.out / "runs" / f"{apart}{spec.folder or spec.name}_{seed}"
        data = self.data_of(spec.dataset, *(change for change in spec.changes if change.startswith("prepare.")))
        place = [change("data.path", data), change("train.run", run), change("train.seed", seed)]
        self.used[run.name] = recipe(self.scale.configs[spec.dataset], [*place, *spec.config_changes()])
        return self.used[run.name]

    def full_length(self, dataset: str = "ende") -> tuple[int, int]:
        """Updates and warm-up of the scale's recipe."""
        plain = recipe(self.scale.configs[dataset])
        return plain.train.steps, plain.optim.warmup

    def short_changes(self) -> tuple[str, str]:
        """Changes of a config for runs that need to show only whether they train."""
        steps, warmup = (short or full for short, full in zip(self.scale.short, self.full_length(), strict=True))
        return f"train.steps={steps}", f"optim.warmup={warmup}"

    def fresh(self, spec: Spec, seed: int) -> Transformer:
        """A run's model at its start."""
        config = self.config(spec, seed)
        return self._build({**config.model.model_dump()}, seed)

    def run(self, spec: Spec, seed: int) -> Run | None:
        """A run with its weights, trained to its end; nothing where it may not be trained, or another process trains it."""
        config = self.config(spec, seed)
        place = Path(config.train.run)
        self.missing.discard(place.name)
        if ended(config, place) or self.may_train(place.name):
            try:
                return self.finish(config)
            except InUse:
                pass
        self.missing.add(place.name)
        return None

    def may_train(self, name: str) -> bool:
        """Whether a run of that name may be trained."""
        return any(fnmatchcase(name, pattern) for pattern in self.train)

    def outcome(self, spec: Spec, seed: int, split: str = "") -> Run | None:
        """A run for its outcome alone, and its BLEU on a split: where both are kept, it is not trained again."""
        kept = self._kept(spec, seed, f"bleu_{split}.json" if split else "outcome.json")
        return read_run(kept) if kept else self.run(spec, seed)

    def readings(self, spec: Spec, seed: int, exam: str, examine: Callable[[Run], list[Reading]]) -> list[Reading]:
        """What an examination of a trained run gives; written into its folder and kept with it, for the weights are not."""
        name = f"{exam}.readings.jsonl"
        kept = self._kept(spec, seed, name)
        run = None if kept else self.run(spec, seed)
        path = kept / name if kept else run.folder / name if run else None
        if path is None:
            return []
        if run and not path.exists():
            readings.write(path, examine(run), origin())
        return readings.read(path)[0]

    def _kept(self, spec: Spec, seed: int, file: str) -> Path | None:
        """The folder beside the page that keeps this run and that file of it, if there is one."""
        config = self.config(spec, seed)
        kept = self.kept and self.kept / Path(config.train.run).name
        if not kept or not ended(config, kept) or not (kept / file).exists():
            return None
        self.missing.discard(kept.name)
        self.before.add(config.train.run)
        return kept

    def finish(self, config: Config) -> Run:
        """The run of a config, trained to its end; notes whether that was done before."""
        known = self.before if ended(config, Path(config.train.run)) else self.made
        run = train_if_needed(config)
        if config.train.run not in self.made:
            known.add(config.train.run)
        return run

    def train_all(self, specs: Sequence[Spec], bleu: bool = False) -> Measured:
        """Train every spec with every seed; its numbers, and its validation curve as readings.

        Gathered in a second round: what another process had begun in the first one may be finished by then.
        """
        found, each = Measured(), [(spec, seed) for seed in self.seed_list for spec in specs]
        for spec, seed in each:
            self._numbers(spec, seed, bleu)
        for spec, seed in each:
            for name, value in self._numbers(spec, seed, bleu).items():
                per_seed = found.numbers.setdefault(f"{spec.name}.{name}", {})
                assert isinstance(per_seed, dict)
                per_seed[str(seed)] = value
            run = self.outcome(spec, seed, self.scale.test if bleu else "")
            for step, loss in run.outcome.curve if run else ():
                label: dict[str, Any] = {"model": spec.name, "step": step, "seed": seed}
                found.readings += [Reading("loss", loss, **label), Reading("ppl", math.exp(min(loss, 50.0)), **label)]
        return found

    def _numbers(self, spec: Spec, seed: int, bleu: bool) -> dict[str, float]:
        """What came out of a run, with its BLEU if that is asked for; nothing where the run is missing."""
        run = self.outcome(spec, seed, self.scale.test if bleu else "")
        if run is None or not bleu:
            return run.outcome.numbers() if run else {}
        scores = run.bleu(self.config(spec, seed), self.scale.test)
        self.facts["bleu"] = _together(self.facts.get("bleu", ""), run.signature(self.scale.test))
        return run.outcome.numbers() | scores

    def bleu_differs(self, one: Spec, other: Spec) -> dict[str, float]:
        """p of the difference between two runs' BLEU, by paired bootstrap, for each seed whose translations are kept."""
        test, found = self.scale.test, {}
        for seed in self.seed_list:
            first, second = self.outcome(one, seed, test), self.outcome(other, seed, test)
            if first and second:
                found[str(seed)] = chance_of_difference(first, second, self.config(one, seed), test)
        return {seed: p for seed, p in found.items() if not math.isnan(p)}

    def batch(self, tokens: int | None = None, seed: int = 1111) -> tuple[Tensor, Tensor]:
        """The first training batch of a run, (source, target_in), or one with another budget."""
        first = next(Batches([Split(self.data, "train")], tokens or self.scale.tokens, seed))
        return first.source, first.target_in

    def model(self, schemes: tuple[str, str], layers: tuple[int, int], seed: int) -> Transformer:
        """A fresh model of the scale's shape, without dropout."""
        settings: dict[str, Any] = {"encoder_layers": layers[0], "decoder_layers": layers[1], "dropout": 0.0}
        return self._build(settings | {"encoder_scheme": schemes[0], "decoder_scheme": schemes[1]} | self.scale.shape, seed)

    def _build(self, settings: dict[str, Any], seed: int) -> Transformer:
        """A model with random weights; Admin's ω are set from the first batch."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Transformer(TransformerConfig(vocab=read_manifest(self.data)["vocab"], **settings))
            if needs_profile(model):
                batch = self.batch(seed=seed)
                stabilise_(model, batch if len(model.config.stacks) > 1 else batch[0])
        return model


def _together(said: str, more: str) -> str:
    """What was said, and more if it is new."""
    return "; ".join(dict.fromkeys(filter(None, [*said.split("; "), more])))
