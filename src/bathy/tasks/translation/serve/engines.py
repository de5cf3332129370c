"""Engines that a server translates with: bathy's own decoder, or CTranslate2 on an exported folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bathy.errors import CheckpointError, ConfigError, require
from bathy.tasks.sums import check_sums
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.translate import Translator, decode_settings, stored_length

GRAIN = 64
"""Source tokens by which CTranslate2's sentences are grouped: one call for each limit on the translation's length."""


class Engine(Protocol):
    """Translates sentences from one language to another."""

    source: str
    target: str
    most: int
    """Translations of a sentence that it can give."""
    longest: int
    """Tokens of a sentence that it can read."""
    codec: Codec

    def translate(self, lines: Sequence[str], n_best: int) -> list[list[str]]:
        """The best translations of each line, best first."""


class BathyEngine:
    """A run or model folder, by bathy."""

    def __init__(self, folder: Path, decode: Decode, batch: int) -> None:
        self.translator = Translator.load([folder], decode, batch=batch)
        self.codec, self.longest, self.most = self.translator.codec, self.translator.longest, decode.beam
        self.source, self.target = self.codec.config.source, self.codec.config.target

    def translate(self, lines: Sequence[str], n_best: int) -> list[list[str]]:
        return [list(one.texts) for one in self.translator.translate(lines, n_best=min(n_best, self.most))]


class CTranslate2Engine:
    """A folder of `bathy export --to ctranslate2`, by CTranslate2, which stops when `beam` hypotheses are finished.

    Searching on as bathy does takes it ten times as long: it cannot tell that no open hypothesis will come out ahead.
    """

    def __init__(self, folder: Path, decode: Decode, batch: int, threads: int) -> None:
        library = require("ctranslate2", "export")
        check_sums(folder)
        self.codec, self.decode, self.batch = Codec.load(folder), decode, batch
        self.source, self.target, self.most = self.codec.config.source, self.codec.config.target, decode.beam
        self.longest = stored_length(folder)
        try:
            self.translator = library.Translator(str(folder), intra_threads=threads)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{folder} is not a CTranslate2 model that can be loaded: {error}") from None

    def translate(self, lines: Sequence[str], n_best: int) -> list[list[str]]:
        rows = self.codec.encode(lines)
        found: list[list[str]] = [[""] * n_best for _ in lines]
        for limit, places in self._by_limit(rows).items():
            for place, texts in zip(places, self._search([rows[i] for i in places], limit, n_best), strict=True):
                found[place] = texts
        return found

    def _by_limit(self, rows: Sequence[Sequence[int]]) -> dict[int, list[int]]:
        """The longest translation allowed, to the rows it is for: CTranslate2 takes one limit for a whole call, and a
        sentence's must not depend on what it is translated with. Rows of EOS alone are left out."""
        groups: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            if len(row) > 1:
                tokens = -(-len(row) // GRAIN) * GRAIN
                limit = min(self.decode.max_length or 2 * tokens + 10, self.longest)
                groups.setdefault(limit, []).append(place)
        return groups

    def _search(self, rows: Sequence[Sequence[int]], limit: int, n_best: int) -> list[list[str]]:
        names, ids = self.codec.subwords["source"].names, self.codec.subwords["target"].vocab
        found = self.translator.translate_batch(
            [[names[i] for i in row] for row in rows],
            beam_size=self.decode.beam,
            num_hypotheses=min(n_best, self.most),
            length_penalty=self.decode.length_penalty,
            patience=max(self.decode.patience, 1),
            max_decoding_length=limit,
            min_decoding_length=self.decode.min_length - 1,
            max_input_length=0,
            max_batch_size=self.batch,
        )
        return [self.codec.decode([[ids[name] for name in one] for one in result.hypotheses]) for result in found]


def open_engine(folder: Path, batch: int, threads: int, **changes: object) -> Engine:
    """The engine of a run, checkpoint or model folder, or of a CTranslate2 folder; `changes` of its search settings."""
    if (folder / "model.bin").exists():
        if changes.get("precision") is not None:
            raise ConfigError(f"{folder} is CTranslate2's, which keeps the number format of its export; leave --precision out")
        return CTranslate2Engine(folder, decode_settings(folder, **changes), batch, threads)
    return BathyEngine(folder, decode_settings(folder, **changes), batch)
