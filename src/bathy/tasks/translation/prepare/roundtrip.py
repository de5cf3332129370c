"""Does text survive tokenising and detokenising? Asked of the first lines of the training text, and reported."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from bathy.tasks.lines import opened
from bathy.tasks.translation.prepare.inputs import Pair
from bathy.tasks.translation.text.codec import Codec, Side

LINES = 1_000


def round_trip(codec: Codec, pair: Pair) -> dict[str, float]:
    """The share of lines, by side, that words and then joining give back as they were, runs of spaces and case aside."""
    return {"source": share(codec, Path(pair.source.path), "source"), "target": share(codec, Path(pair.target.path), "target")}


def share(codec: Codec, path: Path, side: Side, number: int = LINES) -> float:
    """The share of a file's first lines that survive."""
    words = codec.words[side]
    with opened(path) as file:
        lines = [" ".join(line.decode("utf-8", "replace").split()) for line in islice(file, number)]
    if codec.config.lowercase:
        lines = [line.lower() for line in lines]
    return sum(words.join(words.split(line)) == line for line in lines) / len(lines)
