"""Text in, text out: a model or an ensemble with its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from bathy import console
from bathy.core.transformer import Transformer
from bathy.errors import CheckpointError, ConfigError, DataError, ModelError
from bathy.files import read_json
from bathy.tasks import kind_of_folder, read_config
from bathy.tasks.inference import prepare
from bathy.tasks.models import fold_if_possible, home, load
from bathy.tasks.special_tokens import EOS, PAD
from bathy.tasks.translation.search import Decode, Hypothesis, rate, search
from bathy.tasks.translation.text import Codec


@dataclass(frozen=True)
class Translation:
    """One line and its best translations, best first, each with its score."""

    source: str
    texts: tuple[str, ...]
    scores: tuple[float, ...]
    cut: int = 0
    """Source tokens dropped from the end because the line was too long."""


class Translator:
    """Models that translate together, and the tokenizer they share."""

    def __init__(
        self, models: Sequence[Transformer], codec: Codec, decode: Decode, batch: int = 64, tokens: int = 8192
    ) -> None:
        """`batch` sentences, or so many that they have `tokens` source tokens, are translated at a time."""
        _check(models, codec)
        self.models, self.codec, self.decode, self.batch, self.tokens = list(models), codec, decode, batch, tokens
        self.decoders = [prepare(model) for model in models]
        self.device = models[0].output_weight.device
        self.longest = min(model.config.max_length for model in models)

    @classmethod
    def load(
        cls,
        folders: Sequence[Path],
        decode: Decode,
        *,
        which: str = "last",
        folded: bool = True,
        device: str = "cpu",
        batch: int = 64,
    ) -> Self:
        """From run, checkpoint or model folders; a run's last `decode.average` checkpoints are averaged, then ω folded away."""
        codecs = [Codec.load(home(folder)) for folder in folders]
        if any(_names(codec) != _names(codecs[0]) for codec in codecs):
            raise CheckpointError(f"{folders[0]} and {folders[-1]} have different vocabularies and cannot translate together")
        models = [load(folder, decode.average, which) for folder in folders]
        models = [fold_if_possible(model) if folded else model for model in models]
        return cls([model.to(device, getattr(torch, decode.precision)).eval() for model in models], codecs[0], decode, batch)

    def translate(
        self, lines: Sequence[str], prefixes: Sequence[str] | None = None, n_best: int | None = None
    ) -> list[Translation]:
        """The translations of all lines, in their order; an empty line stays empty, one too long is cut."""
        decode = self.decode if n_best is None else self.decode.model_copy(update={"n_best": n_best})
        rows, beginnings = self.encode(lines), self._prefixes(lines, prefixes)
        found: dict[int, list[Hypothesis]] = {}
        for batch in batches([len(row) if len(row) > 1 else 0 for row in rows], self.batch, self.tokens):
            source = padded([self._cut(rows[i]) for i in batch], self.device)
            prefix = padded([beginnings[i] for i in batch], self.device) if beginnings else None
            found |= zip(batch, search(self.decoders, source, decode, prefix), strict=True)
        return [self._translation(line, row, found.get(i, [])) for i, (line, row) in enumerate(zip(lines, rows, strict=True))]

    def rate(self, lines: Sequence[str], translations: Sequence[str]) -> list[float]:
        """The score of each given translation, as if search had found it."""
        if len(lines) != len(translations):
            raise DataError(f"there are {len(lines)} lines and {len(translations)} translations; they must agree")
        rows, targets = self.encode(lines), self.codec.encode(translations, "target")
        if cut := sum(max(len(row), len(target)) > self.longest for row, target in zip(rows, targets, strict=True)):
            console.warn(f"{cut} of {len(rows)} lines are longer than {self.longest} tokens on a side; the rest is not counted")
        scores = [0.0] * len(rows)
        for batch in batches([max(len(rows[i]), len(targets[i])) for i in range(len(rows))], self.batch, self.tokens):
            source, target = (padded([self._cut(side[i]) for i in batch], self.device) for side in (rows, targets))
            for i, value in zip(batch, rate(self.models, source, target, self.decode).tolist(), strict=True):
                scores[i] = value
        return scores

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Source ids, each row ending with EOS."""
        return self.codec.encode(lines, "source")

    def _prefixes(self, lines: Sequence[str], prefixes: Sequence[str] | None) -> list[list[int]]:
        if prefixes is None:
            return []
        if len(prefixes) != len(lines):
            raise DataError(f"there are {len(lines)} lines and {len(prefixes)} prefixes; they must agree")
        rows = [row[:-1] for row in self.codec.encode(prefixes, "target")]
        limits = self.decode.limits(padded([self._cut(row) for row in self.encode(lines)]), self.longest).tolist()
        for number, (row, limit) in enumerate(zip(rows, limits, strict=True), 1):
            if len(row) >= limit:
                raise DataError(
                    f"prefix {number} has {len(row)} tokens; its translation may have {limit}: raise decode.max_length"
                )
        return rows

    def _cut(self, row: list[int]) -> list[int]:
        return row if len(row) <= self.longest else [*row[: self.longest - 1], EOS]

    def _translation(self, line: str, row: list[int], found: list[Hypothesis]) -> Translation:
        texts = tuple(self.codec.decode([one.tokens for one in found])) or ("",)
        scores = tuple(one.score for one in found) or (0.0,)
        return Translation(line, texts, scores, max(0, len(row) - self.longest))


def decode_settings(folder: Path, **changes: object) -> Decode:
    """Search settings of a run's config or of an exported folder; `changes` that are not None override them."""
    if kind_of_folder(home(folder)) == "language":
        raise ConfigError(f"{folder} is a language model; `bathy sample` continues text with it, `bathy score` rates text")
    config = home(folder) / "config.toml"
    known = read_config(config, needs="translation").decode.model_dump() if config.exists() else _stored(folder)
    return Decode(**known | {name: value for name, value in changes.items() if value is not None})


def stored_length(folder: Path) -> int:
    """Most tokens of a sentence that the model in an exported folder of another engine can read."""
    found = read_json(folder / SETTINGS).get("max_length") if (folder / SETTINGS).exists() else UNKNOWN_LENGTH
    if not isinstance(found, int) or found < 2:
        raise CheckpointError(f"{folder / SETTINGS} does not describe a bathy model: its longest sentence is {found!r}")
    return found


SETTINGS = "bathy.json"
"""Search settings and longest sentence of a folder whose config.json is another engine's."""
UNKNOWN_LENGTH = 256
"""Of folders that were exported before it was written down."""


def _stored(folder: Path) -> dict[str, object]:
    path = next((path for name in (SETTINGS, "config.json") if (path := folder / name).exists()), None)
    decode = read_json(path).get("decode", {}) if path else {}
    if not isinstance(decode, dict):
        raise CheckpointError(f"{path} does not describe a bathy model: its search settings are {decode!r}")
    return decode


def batches(lengths: Sequence[int], size: int, tokens: int) -> list[list[int]]:
    """Indices of sentences by falling length, at most `size` sentences or `tokens` padded tokens each; length 0 is skipped."""
    result: list[list[int]] = []
    for i in sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i]):
        if not result or len(result[-1]) == size or (len(result[-1]) + 1) * lengths[result[-1][0]] > tokens:
            result.append([])
        result[-1].append(i)
    return result


def padded(rows: Sequence[Sequence[int]], device: torch.device | None = None) -> Tensor:
    """The rows as one tensor, padded on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows], dtype=torch.long, device=device)


def chunked(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """The lines in lists of `size`."""
    rest = iter(lines)
    while chunk := list(islice(rest, size)):
        yield chunk


def _names(codec: Codec) -> list[list[str]]:
    return [part.names for part in codec.subwords.values()]


def _check(models: Sequence[Transformer], codec: Codec) -> None:
    for model in models:
        if len(model.config.stacks) != 2:
            raise ModelError(f"this model has only a {model.config.stacks[0]}; translation needs an encoder and a decoder")
        if model.config.vocab != codec.vocab:
            raise ConfigError(
                f"the model has {model.config.vocab} token ids, its tokenizer {codec.vocab}; they do not belong together"
            )
