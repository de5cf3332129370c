"""Text in, text out: a model or an ensemble with its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from bathy.errors import CheckpointError, ConfigError, DataError, ModelError
from bathy.folding import fold
from bathy.nmt import checkpoint
from bathy.nmt.config import read_config
from bathy.nmt.marks import EOS, PAD
from bathy.nmt.search import Decode, Hypothesis, rate, search
from bathy.nmt.text import Codec
from bathy.transformer import Transformer

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Translation:
    """What became of a line: its best translations, best first, each with its score."""

    source: str
    texts: tuple[str, ...]
    scores: tuple[float, ...]
    cut: int = 0
    """Source tokens left out at the end because the line was too long."""


class Translator:
    """Models that translate together, and the tokenizer they share."""

    def __init__(
        self, models: Sequence[Transformer], codec: Codec, decode: Decode, batch: int = 64, tokens: int = 8192
    ) -> None:
        """`batch` sentences, or so many that they have `tokens` source tokens, are translated at a time."""
        _check(models, codec)
        self.models, self.codec, self.decode, self.batch, self.tokens = list(models), codec, decode, batch, tokens
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
        precision: str = "float32",
        batch: int = 64,
    ) -> Self:
        """From run, checkpoint or model folders; a run's last `decode.average` checkpoints are averaged, then ω folded away."""
        codecs = [Codec.load(home(folder)) for folder in folders]
        if any(_names(codec) != _names(codecs[0]) for codec in codecs):
            raise CheckpointError(f"{folders[0]} and {folders[-1]} have different vocabularies and cannot translate together")
        models = [checkpoint.load(folder, decode.average, which) for folder in folders]
        models = [plain(model) if folded else model for model in models]
        return cls([model.to(device, PRECISIONS[precision]).eval() for model in models], codecs[0], decode, batch)

    def translate(self, lines: Sequence[str], prefixes: Sequence[str] | None = None) -> list[Translation]:
        """The translations of all lines, in their order; an empty line stays empty, one too long is cut."""
        rows, beginnings = self.encode(lines), self._prefixes(lines, prefixes)
        found: dict[int, list[Hypothesis]] = {}
        for batch in batches([len(row) if len(row) > 1 else 0 for row in rows], self.batch, self.tokens):
            source = padded([self._cut(rows[i]) for i in batch], self.device)
            prefix = padded([beginnings[i] for i in batch], self.device) if beginnings else None
            found |= zip(batch, search(self.models, source, self.decode, prefix), strict=True)
        return [self._translation(line, row, found.get(i, [])) for i, (line, row) in enumerate(zip(lines, rows, strict=True))]

    def rate(self, lines: Sequence[str], translations: Sequence[str]) -> list[float]:
        """The score of each given translation, as if search had found it."""
        if len(lines) != len(translations):
            raise DataError(f"there are {len(lines)} lines and {len(translations)} translations; they must agree")
        rows, targets = self.encode(lines), self.codec.encode(translations, "target")
        scores = [0.0] * len(rows)
        for batch in batches([max(len(rows[i]), len(targets[i])) for i in range(len(rows))], self.batch, self.tokens):
            source, target = (padded([self._cut(side[i]) for i in batch], self.device) for side in (rows, targets))
            for i, value in zip(batch, rate(self.models, source, target, self.decode).tolist(), strict=True):
                scores[i] = value
        return scores

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Source ids, each with an end mark."""
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


def plain(model: Transformer) -> Transformer:
    """The model with ω folded away; as it is, where its scheme does not fold."""
    try:
        return fold(model)
    except ModelError:
        return model


def home(folder: Path) -> Path:
    """Where a run, checkpoint or model folder keeps its tokenizer."""
    return folder.parent.parent if folder.parent.name == "checkpoints" else folder


def decode_settings(folder: Path, **changes: object) -> Decode:
    """How a run's config, or an exported model's config.json, says to search; `changes` that are not None come first."""
    config, model = home(folder) / "config.toml", folder / "config.json"
    known = read_config(config).decode.model_dump() if config.exists() else _stored(model) if model.exists() else {}
    return Decode(**known | {name: value for name, value in changes.items() if value is not None})


def _stored(path: Path) -> dict[str, object]:
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("decode", {})
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} does not describe a bathy model: {error}") from None


def batches(lengths: Sequence[int], size: int, tokens: int) -> list[list[int]]:
    """Indices of sentences by falling length, at most `size` of them or `tokens` padded ones; those of length 0 left out."""
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
