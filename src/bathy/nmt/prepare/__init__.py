"""`bathy prepare`: raw text to a data folder, in stages that are each done once.

    raw files ──clean──▶ tokenised shards ──learn──▶ tokenizer ──encode──▶ id shards ──assemble──▶ data/

A stage's results lie in `.work` under a key: a hash of its input and of the settings that matter to it. A finished shard
is never made again, so a killed run goes on where it stopped, and a changed setting redoes what depends on it, no more.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bathy.console import progress, track
from bathy.errors import ConfigError, DataError
from bathy.files import explained, origin, write_json
from bathy.nmt.dataconfig import PrepareConfig, WithData
from bathy.nmt.pool import Pool
from bathy.nmt.prepare import clean, encode
from bathy.nmt.prepare.inputs import SHARD, Pair, inspect_all
from bathy.nmt.prepare.repeated import mark_repeated
from bathy.nmt.prepare.roundtrip import round_trip
from bathy.nmt.text.bpe import Subwords, from_codes, learn, read_codes, unite
from bathy.nmt.text.codec import Codec

FORMAT = 1
"""Part of every key: a new number here makes all data folders be prepared again."""
SMALL = 50_000
"""Below so many lines one process is done before others would have started."""
TEXT_KEYS = ("normalise", "tokeniser", "aggressive", "escape", "lowercase", "invalid", "source", "target")
CLEAN_KEYS = ("min_length", "max_length", "max_ratio", "measure", "deduplicate")
LEARN_KEYS = ("joint", "merges", "characters")
ENCODE_KEYS = ("min_length", "max_length", "max_ratio", "measure", "longest", "overlong", "valid_every")


def prepare(config: WithData) -> dict[str, Any]:
    """Make `data.path` from `prepare.raw`; returns the manifest. With nothing changed, nothing is done."""
    folder = only_folder(config)
    with explained(folder), closing(Preparation(config, folder)) as preparation:
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


def chosen(config: PrepareConfig, names: tuple[str, ...]) -> dict[str, Any]:
    """The settings of these names."""
    return {name: getattr(config, name) for name in names}


class Preparation:
    """One run of the stages; the attributes are where each stage's results lie."""

    def __init__(self, config: WithData, folder: Path) -> None:
        self.config, self.vocab, self.folder = config.prepare, config.data.vocab, folder
        self.work = folder / ".work"
        self.pool = Pool(config.prepare.workers)
        self.manifest = folder / "manifest.json"

    def run(self) -> dict[str, Any]:
        """All stages in order, or the manifest as it is if it would not change."""
        pairs = inspect_all(Path(self.config.raw), self.config.source, self.config.target, self.memory(), self.config.workers)
        if sum(pair.lines for pair in pairs) < SMALL:
            self.pool = Pool(1)
        if self.config.valid_every and any(pair.split == "valid" for pair in pairs):
            raise ConfigError(
                f"prepare.valid_every is {self.config.valid_every}, but {self.config.raw} has a validation split; use one"
            )
        texts = {pair.split: self.work / f"text-{self.text_key(pair)}" for pair in pairs}
        learnt = self.work / f"bpe-{self.learn_key(texts['train'].name)}"
        ids = {split: self.work / f"ids-{self.encode_key(split, text.name, learnt.name)}" for split, text in texts.items()}
        keys = {split: path.name for split, path in ids.items()}
        if (old := self.current()) and old["keys"] == keys:
            return old
        self.tokenise(pairs, texts)
        accounts = {pair.split: clean.accounts(texts[pair.split], pair) for pair in pairs}
        kept = {split: [account.counts[clean.KEPT] for account in rows] for split, rows in accounts.items()}
        if not sum(kept["train"]):
            raise DataError(
                f"no training pair of {self.config.raw} is left after cleaning; check prepare's limits and languages"
            )
        if self.config.deduplicate:
            mark_repeated(texts["train"], kept["train"])
        self.learn(texts["train"], kept["train"], accounts["train"], learnt)
        self.number(texts, kept, learnt, ids)
        manifest = self.finish(pairs, texts, kept, learnt, ids, keys)
        self.tidy({*texts.values(), *ids.values(), learnt})
        return manifest

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()

    def memory(self) -> Path:
        return self.work / "inputs.json"

    def current(self) -> dict[str, Any] | None:
        """The manifest of a finished data folder, if all its files are there."""
        if not self.manifest.exists():
            return None
        value: dict[str, Any] = json.loads(self.manifest.read_text(encoding="utf-8"))
        names = [name for row in value["splits"].values() for side in encode.SIDES for name in row[side]["sha256"]]
        return value if all((self.folder / name).exists() for name in (*names, "tokenizer.json", "text.json")) else None

    def text_key(self, pair: Pair) -> str:
        cleaning = CLEAN_KEYS if pair.split == "train" else ()
        return key("text", pair.source.sha256, pair.target.sha256, chosen(self.config, TEXT_KEYS + cleaning))

    def learn_key(self, text: str) -> str:
        codes = [read_codes(Path(path)) for path in (self.config.codes, self.config.codes_target) if path]
        return key("bpe", text, self.vocab, codes, chosen(self.config, LEARN_KEYS))

    def encode_key(self, split: str, text: str, learnt: str) -> str:
        return key("ids", split, text, learnt, chosen(self.config, ENCODE_KEYS))

    def tokenise(self, pairs: list[Pair], folders: dict[str, Path]) -> None:
        """Stage 1: tokenise and clean what is not done yet."""
        work = chain.from_iterable(clean.jobs(self.config, pair, folders[pair.split]) for pair in pairs)
        with progress("tokenising", sum(pair.lines for pair in pairs)) as advance:
            for lines in self.pool.map(clean.clean_shard, work):
                advance(lines)

    def places(self, text: Path, kept: list[int]) -> tuple[list[int], list[int], npt.NDArray[np.bool_] | None]:
        """(start of each shard among kept pairs, the same with repeated ones left out, which are not repeated)."""
        starts = list(accumulate(kept, initial=0))
        if not (text / "keep.npy").exists():
            return starts, starts, None
        keep = np.load(text / "keep.npy", mmap_mode="r")
        return starts, list(accumulate((int(keep[a:b].sum()) for a, b in pairwise(starts)), initial=0)), keep

    def lines(self, text: Path, kept: list[int], side: int | None) -> Iterator[list[str]]:
        """The training text that BPE learns from, shard by shard: one side's lines or both, validation pairs left out."""
        every = self.config.valid_every
        starts, firsts, keep = self.places(text, kept)
        for number in track(range(len(kept)), "reading text for BPE"):
            mask = None if keep is None else keep[starts[number] : starts[number + 1]]
            pairs = clean.read_shard(text, number, mask)
            if every:
                pairs = [pair for place, pair in enumerate(pairs, firsts[number] + 1) if place % every]
            yield [line for pair in pairs for line in (pair if side is None else [pair[side]])]

    def learn(self, text: Path, kept: list[int], accounts: list[clean.Account], folder: Path) -> None:
        """Stage 2: learn BPE, or replay codes, and write the codec."""
        if (folder / "text.json").exists():
            return
        config, raw = self.config, self.config.tokeniser == "raw"

        def trained(side: int | None, codes: str) -> Any:
            characters = self.alphabet(text, kept, accounts, side)
            if codes:
                return from_codes(Path(codes), characters)
            return learn(self.lines(text, kept, side), characters, self.vocab, config.merges, raw)

        if config.joint:
            tokenizers = [trained(None, config.codes)]
        else:
            tokenizers = list(unite(trained(0, config.codes), trained(1, config.codes_target)))
        Codec(clean.text_settings(config), *map(Subwords, tokenizers)).save(folder)

    def alphabet(self, text: Path, kept: list[int], accounts: list[clean.Account], side: int | None) -> set[str]:
        """The characters of one side or both; of many, the commonest `prepare.characters`."""
        sides = (0, 1) if side is None else (side,)
        found = {char for account in accounts for i in sides for char in account.characters[i]}
        if not 0 < self.config.characters < len(found):
            return found
        counts = Counter(char for lines in self.lines(text, kept, side) for line in lines for char in line if char != " ")
        return set(sorted(counts, key=lambda char: (-counts[char], char))[: self.config.characters])

    def number(self, texts: dict[str, Path], kept: dict[str, list[int]], codec: Path, folders: dict[str, Path]) -> None:
        """Stage 3: words to ids, for the shards that are not done yet."""
        work = chain.from_iterable(self.unnumbered(split, texts[split], kept[split], codec, folders[split]) for split in texts)
        with progress("encoding", sum(map(sum, kept.values()))) as advance:
            for lines in self.pool.map(encode.encode_shard, work):
                advance(lines)

    def unnumbered(self, split: str, text: Path, kept: list[int], codec: Path, folder: Path) -> Iterator[encode.Job]:
        """A split's shards that have no ids yet."""
        starts, firsts, _ = self.places(text, kept)
        for number, count in enumerate(kept):
            if not clean.finished(folder, number):
                yield encode.Job(self.config, split, text, folder, codec, number, firsts[number], starts[number], count)

    def finish(
        self,
        pairs: list[Pair],
        texts: dict[str, Path],
        kept: dict[str, list[int]],
        learnt: Path,
        ids: dict[str, Path],
        keys: dict[str, str],
    ) -> dict[str, Any]:
        """Stage 4: the files of the data folder. The manifest goes first and comes last: it says that all is whole."""
        self.manifest.unlink(missing_ok=True)
        codec = Codec.load(learnt)
        (self.folder / "tokenizer.target.json").unlink(missing_ok=True)
        codec.save(self.folder)
        origins = {pair.split: pair.split for pair in pairs}
        if self.config.valid_every:
            origins["valid"] = "train"
        rows = {}
        for split, start in origins.items():
            rows[split] = encode.assemble(self.folder, ids[start], len(kept[start]), split, codec.vocab)
            if split == start:
                pair = next(pair for pair in pairs if pair.split == split)
                rows[split] |= self.account(pair, texts[split], kept[split], ids[split])
        if not rows["train"]["sentences"]:
            raise DataError(
                f"no training pair of {self.config.raw} is left after cleaning; check prepare's limits and languages"
            )
        manifest = {
            "format": FORMAT,
            "vocab": codec.vocab,
            "splits": rows,
            "round_trip": round_trip(codec, pairs[0]),
            "settings": {"data": {"vocab": self.vocab}, "prepare": self.config.model_dump()},
            "inputs": [vars(item) for pair in pairs for item in (pair.source, pair.target)],
            "keys": keys,
            "origin": origin(),
        }
        write_json(self.manifest, manifest)
        return manifest

    def account(self, pair: Pair, text: Path, kept: list[int], ids: Path) -> dict[str, Any]:
        """Where the raw lines went: read, dropped by reason, cut."""
        counts: Counter[str] = sum((account.counts for account in clean.accounts(text, pair)), Counter())
        for report in encode.reports(ids, len(kept)):
            counts.update(report["counts"])
        if (text / "keep.npy").exists():
            counts["repeated"] = sum(kept) - int(np.load(text / "keep.npy", mmap_mode="r").sum())
        cut = {name.removesuffix(" cut"): counts.pop(name) for name in list(counts) if name.endswith(" cut")}
        counts.pop(clean.KEPT)
        return {"lines": pair.lines, "dropped": {k: v for k, v in sorted(counts.items()) if v}, "cut": sum(cut.values())}

    def tidy(self, used: set[Path]) -> None:
        """Remove what the settings no longer refer to, and the id shards; without `keep_text` the tokenised text too."""
        for path in self.work.iterdir():
            if path.is_dir() and (path not in used or path.name.startswith("ids-") or not self.config.keep_text):
                shutil.rmtree(path)


__all__ = ["SHARD", "prepare"]
