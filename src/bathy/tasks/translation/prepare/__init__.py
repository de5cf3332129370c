"""`bathy prepare`: raw text to a data folder, in stages that are each done once.

    raw files ──clean──▶ tokenised shards ──learn──▶ tokenizer ──encode──▶ id shards ──assemble──▶ data/

A stage's results lie in `.work` under a key: a hash of its input and of the settings that it can see. A finished shard
is never made again, so a killed run resumes where it stopped, and a changed setting redoes what depends on it, no more.
Whatever is found is verified first: what is missing or damaged counts as not done.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bathy.console import err, progress
from bathy.errors import ConfigError, DataError
from bathy.files import check_folder, explained, lock_folder, origin, remove, write_json
from bathy.tasks.pool import Pool
from bathy.tasks.translation.corpora.layout import splits
from bathy.tasks.translation.data import Manifest, damaged_files, read_manifest
from bathy.tasks.translation.prepare import clean, encode
from bathy.tasks.translation.prepare.inputs import SHARD, Pair, inspect_all
from bathy.tasks.translation.prepare.learn import CleanText, learn_codec
from bathy.tasks.translation.prepare.repeated import mark_repeated
from bathy.tasks.translation.prepare.roundtrip import round_trip
from bathy.tasks.translation.prepare.shards import is_finished
from bathy.tasks.translation.settings import CleanConfig, EncodeConfig, LearnConfig, PrepareConfig, TextConfig, WithData
from bathy.tasks.translation.text.bpe import read_codes
from bathy.tasks.translation.text.codec import FILES, Codec
from bathy.tasks.translation.text.pieces import Pieces

FORMAT = 2
"""Part of every key: a new number here makes all data folders be prepared again."""
SMALL = 50_000
"""Below so many lines one process is done before others would have started."""


def prepare(config: WithData) -> Manifest:
    """Make `data.path` from `prepare.raw`; returns the manifest. With nothing changed and nothing damaged, nothing is done."""
    folder = only_folder(config)
    splits(Path(config.prepare.raw), config.prepare.source, config.prepare.target)
    check_folder(folder)
    with explained(folder), lock_folder(folder), closing(Preparation(config, folder)) as preparation:
        return preparation.run()


def only_folder(config: WithData) -> Path:
    """The one folder to write."""
    if len(config.data.folders) != 1:
        raise ConfigError(f"data.path names {len(config.data.folders)} folders; prepare writes one at a time")
    if not config.prepare.raw:
        raise ConfigError(
            "prepare.raw is missing; it gives the folder of raw text, for example from `bathy corpus toy raw/toy`"
        )
    return config.data.folders[0]


def key(*parts: Any) -> str:
    """A short hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps([FORMAT, *parts], sort_keys=True).encode()).hexdigest()[:16]


class Preparation:
    """One run of the stages. Each stage sees its own settings only: nothing it reads can be missing from its key."""

    def __init__(self, config: WithData, folder: Path) -> None:
        self.config, self.vocab, self.folder = config.prepare, config.data.vocab, folder
        self.cleaning = self.config.only(CleanConfig)
        self.learning = self.config.only(LearnConfig)
        self.encoding = self.config.only(EncodeConfig)
        self.work = folder / ".work"
        self.pool = Pool(config.prepare.workers)

    def run(self) -> Manifest:
        """All stages in order, or the manifest as it is if nothing would change."""
        self.clear_the_way()
        memory = self.work / "inputs.json"
        pairs = inspect_all(Path(self.config.raw), self.config.source, self.config.target, memory, self.config.workers)
        if sum(pair.lines for pair in pairs) < SMALL:
            self.pool = Pool(1)
        if self.config.valid_every and any(pair.split == "valid" for pair in pairs):
            raise ConfigError(
                f"prepare.valid_every is {self.config.valid_every}, but {self.config.raw} has a validation split; use one"
            )
        folders = {pair.split: self.work / f"text-{self.text_key(pair)}" for pair in pairs}
        learned = self.work / f"bpe-{self.learn_key(folders['train'].name)}"
        ids = {split: self.work / f"ids-{self.encode_key(split, text.name, learned.name)}" for split, text in folders.items()}
        if current := self.current({split: path.name for split, path in ids.items()}):
            return current
        self.tokenise_text(pairs, folders)
        texts = {pair.split: CleanText(folders[pair.split], clean.accounts(folders[pair.split], pair)) for pair in pairs}
        if not sum(texts["train"].kept):
            raise DataError(nothing_left(self.config))
        if self.cleaning.deduplicate:
            mark_repeated(texts["train"].folder, texts["train"].kept)
        self.learn_subwords(texts["train"], learned)
        self.encode_text(texts, learned, ids)
        manifest = self.assemble(pairs, texts, learned, ids)
        self.tidy({*folders.values(), *ids.values(), learned})
        return manifest

    def clear_the_way(self) -> None:
        """Remove what stands in .work where a file or folder of ours belongs and is not one."""
        folders = [self.work, *self.work.glob("*-*")] if self.work.is_dir() else [self.work]
        files = [path for path in self.work.glob("*-*/*") if path.is_dir()]
        for path in [*(path for path in folders if path.is_file()), *files, self.work / "inputs.json"]:
            if path.name != "inputs.json" or path.is_dir():
                remove(path)

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()

    def current(self, keys: dict[str, str]) -> Manifest | None:
        """The manifest of a finished data folder, if these are its keys and all its files are what was written."""
        if not (self.folder / "manifest.json").exists():
            return None
        try:
            manifest = read_manifest(self.folder)
            if manifest["keys"] != keys:
                return None
            wrong = damaged_files(self.folder, manifest)
            Codec.load(self.folder)
        except DataError as error:
            err.print(f"preparing the folder again: {error}", markup=False)
            return None
        if wrong:
            err.print(f"preparing the folder again: {self.folder / wrong[0]} is damaged or missing", markup=False)
        return None if wrong else manifest

    def text_key(self, pair: Pair) -> str:
        texts = (pair.source.sha256, pair.target.sha256)
        if pair.split == "train":
            return key("text", *texts, self.cleaning.model_dump())
        return key("text", *texts, self.config.only(TextConfig).model_dump(), self.cleaning.invalid)

    def learn_key(self, text: str) -> str:
        paths = [Path(path) for path in (self.learning.codes, self.learning.codes_target) if path]
        pieces = self.config.tokeniser == "sentencepiece"
        codes = [Pieces.load(path).model.hex() if pieces else read_codes(path) for path in paths]
        return key("bpe", text, self.vocab, codes, self.learning.model_dump(exclude={"codes", "codes_target"}))

    def encode_key(self, split: str, text: str, learned: str) -> str:
        return key("ids", split, text, learned, self.encoding.model_dump())

    def tokenise_text(self, pairs: list[Pair], folders: dict[str, Path]) -> None:
        """Stage 1: tokenise and clean what is not done yet."""
        work = chain.from_iterable(clean.jobs(self.cleaning, pair, folders[pair.split]) for pair in pairs)
        with progress("tokenising", sum(pair.lines for pair in pairs)) as advance:
            for lines in self.pool.map(clean.clean_shard, work):
                advance(lines)

    def learn_subwords(self, text: CleanText, folder: Path) -> None:
        """Stage 2: learn subwords, unless that is done."""
        try:
            Codec.load(folder)
        except DataError:
            learn_codec(text, self.learning, self.config.only(TextConfig), self.vocab).save(folder)

    def encode_text(self, texts: dict[str, CleanText], codec: Path, folders: dict[str, Path]) -> None:
        """Stage 3: words to ids, for the shards that are not done yet."""
        work = chain.from_iterable(self.unencoded(split, text, codec, folders[split]) for split, text in texts.items())
        with progress("encoding", sum(sum(text.kept) for text in texts.values())) as advance:
            for lines in self.pool.map(encode.encode_shard, work):
                advance(lines)

    def unencoded(self, split: str, text: CleanText, codec: Path, folder: Path) -> Iterator[encode.Job]:
        """A split's shards that have no ids yet."""
        starts, first_places = text.starts, text.first_places
        for number, count in enumerate(text.kept):
            if not is_finished(folder, f"{number:06}"):
                job = self.encoding, split, text.folder, folder, codec, number, first_places[number], starts[number], count
                yield encode.Job(*job)

    def assemble(self, pairs: list[Pair], texts: dict[str, CleanText], learned: Path, ids: dict[str, Path]) -> Manifest:
        """Stage 4: the files of the data folder. The manifest goes first and comes last: it says that all is whole."""
        self.remove_old()
        codec = Codec.load(learned)
        codec.save(self.folder)
        rows: dict[str, Any] = {}
        for pair in pairs:
            text, shards = texts[pair.split], ids[pair.split]
            rows[pair.split] = encode.assemble(self.folder, shards, len(text.accounts), pair.split, codec.vocab)
            rows[pair.split] |= account(pair, text, shards)
        if self.config.valid_every:
            rows["valid"] = encode.assemble(self.folder, ids["train"], len(texts["train"].accounts), "valid", codec.vocab)
        if not rows["train"]["sentences"]:
            raise DataError(nothing_left(self.config))
        manifest: Manifest = {
            "format": FORMAT,
            "vocab": codec.vocab,
            "splits": rows,
            "round_trip": round_trip(codec, pairs[0]),
            "settings": {"data": {"vocab": self.vocab}, "prepare": self.config.model_dump(mode="json")},
            "inputs": [vars(item) for pair in pairs for item in (pair.source, pair.target)],
            "keys": {split: path.name for split, path in ids.items()},
            "origin": origin(),
        }
        write_json(self.folder / "manifest.json", manifest, seal=True)
        return manifest

    def remove_old(self) -> None:
        """Remove the files of an earlier preparation, the manifest first."""
        names = ["manifest.json", "text.json", *chain.from_iterable(FILES)]
        arrays = [path for side in encode.SIDES for path in self.folder.glob(f"*.{side}.*.npy")]
        for path in [*(self.folder / name for name in names), *arrays]:
            remove(path)

    def tidy(self, used: set[Path]) -> None:
        """Remove what the settings no longer refer to, and the id shards; without `keep_text` the tokenised text too."""
        for path in self.work.iterdir():
            if path.is_dir() and (path not in used or path.name.startswith("ids-") or not self.config.keep_text):
                shutil.rmtree(path)


def account(pair: Pair, text: CleanText, ids: Path) -> dict[str, Any]:
    """Where the raw lines went: read, dropped by reason, cut."""
    counts: Counter[str] = sum((shard.counts for shard in text.accounts), Counter())
    for report in encode.reports(ids, len(text.accounts)):
        counts.update(report["counts"])
    if (keep := text.not_repeated) is not None:
        counts["repeated"] = sum(text.kept) - int(np.asarray(keep).sum())
    cut = {name.removesuffix(" cut"): counts.pop(name) for name in list(counts) if name.endswith(" cut")}
    counts.pop(clean.KEPT)
    return {"lines": pair.lines, "dropped": {k: v for k, v in sorted(counts.items()) if v}, "cut": sum(cut.values())}


def nothing_left(config: PrepareConfig) -> str:
    """The message when cleaning dropped every pair."""
    return f"no training pair of {config.raw} is left after cleaning; check prepare's limits and languages"


__all__ = ["SHARD", "prepare"]
