"""How parallel text lies in a folder: `train.de`, `train.en`, `valid.de` …, plain or compressed, and `corpus.json`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from bathy.errors import DataError
from bathy.files import digest, origin, replacing, write_json
from bathy.tasks.lines import OPENERS, opened

ALIASES = {"val": "valid", "dev": "valid"}
"""Other people's names for the validation split."""


class PairFile:
    """Writes one split, line by line; both files appear together when all is written, and neither if it fails."""

    def __init__(self, folder: Path, split: str, source: str, target: str) -> None:
        self.paths = folder / f"{split}.{source}", folder / f"{split}.{target}"
        self.lines = 0
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            temporary = [opening.enter_context(replacing(path)) for path in self.paths]
            self.files = [opening.enter_context(p.open("wb")) for p in temporary]
            self.stack = opening.pop_all()
        return self

    def write(self, source: bytes, target: bytes) -> None:
        """One pair; lines come without their ends."""
        for file, line in zip(self.files, (source, target), strict=True):
            file.write(line + b"\n")
        self.lines += 1

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)


def located(stem: Path, language: str) -> Path | None:
    """`stem.language`, plain or compressed, if it exists."""
    candidates = [stem.with_name(f"{stem.name}.{language}{ending}") for ending in OPENERS]
    return next((path for path in candidates if path.is_file()), None)


def splits(folder: Path, source: str, target: str) -> dict[str, tuple[Path, Path]]:
    """Split name to its two files, for all splits that the folder has in both languages; `train` first."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; `bathy corpus` writes one, or `bathy corpus folder` from your files")
    found = {}
    for path in sorted(folder.iterdir()):
        name, _, rest = path.name.partition(f".{source}")
        if path.name.startswith(".") or rest not in OPENERS or f".{source}" not in path.name:
            continue
        other = located(folder / name, target)
        if other is None:
            raise DataError(f"{path} has no partner {name}.{target} beside it")
        found[ALIASES.get(name, name)] = (path, other)
    if "train" not in found:
        raise DataError(f"{folder} has no train.{source} and train.{target} (plain, .gz, .bz2 or .xz)")
    return dict(sorted(found.items(), key=lambda item: (item[0] != "train", item[0])))


def count_lines(path: Path) -> int:
    """Lines of a text file; a last line without a line end counts."""
    lines, last = 0, b"\n"
    with opened(path) as file:
        while block := file.read(1 << 20):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def describe(folder: Path, name: str, source: str, target: str, **facts: Any) -> dict[str, Any]:
    """Write `corpus.json`: what the folder holds, its line counts and checksums, and what made it."""
    rows = {
        split: {"lines": count_lines(paths[0]), "sha256": {p.name: digest(p) for p in paths}}
        for split, paths in splits(folder, source, target).items()
    }
    value = {"corpus": name, "source": source, "target": target, "splits": rows, **facts, "origin": origin()}
    write_json(folder / "corpus.json", value, seal=True)
    return value
