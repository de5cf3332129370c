"""Text to begin with: the standard library's own source, a classic download, and a user's files, as train and valid."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bathy.errors import ConfigError, DataError, unknown
from bathy.files import check_folder, digest, explained, origin, replacing, write_json
from bathy.tasks.download import Remote, fetch
from bathy.tasks.language.text import DESCRIPTION, Reading, documents, files

SHAKESPEARE = Remote(
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt", 1_115_394,
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", "tensorflow/datasets, url_checksums",
)  # fmt: skip
LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "idlelib", "lib2to3", "test", "tests"}
"""Folders of the standard library that are not its source, or that test it."""
EVERY = 20
"""Of the standard library's modules, every so many-th is held out."""
NAMES = ("stdlib", "tinyshakespeare")

Texts = dict[str, Iterable[str]]


def write(name: str, folder: Path, text: Path | None = None) -> dict[str, Any]:
    """Write a corpus's splits and corpus.json into a folder; returns what corpus.json says."""
    check_folder(folder)
    with explained(folder):
        if name == "stdlib":
            return write_splits(folder, name, standard_library())
        if name == "tinyshakespeare":
            return write_splits(folder, name, shakespeare(fetch(SHAKESPEARE, folder / ".downloads")), url=SHAKESPEARE.url)
        if name == "folder" and text is not None:
            return write_splits(folder, name, own(text), text=str(text))
    raise ConfigError(unknown("corpus of plain text", name, [*NAMES, "folder"]))


def shakespeare(path: Path) -> Texts:
    """The first 90 % of the characters, and the rest, as nanoGPT cuts them."""
    (text,) = documents(path)
    cut = int(0.9 * len(text))
    return {"train": [text[:cut]], "valid": [text[cut:]]}


def standard_library() -> Texts:
    """The modules of the running Python's standard library, one document each, in order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(root.rglob("*.py")) if not LEFT_OUT & set(path.relative_to(root).parts[:-1])]
    if not paths:
        raise DataError(f"{root} has no Python source; this Python comes without it: use `bathy corpus folder` with your own")

    def texts(held_out: bool) -> Iterator[str]:
        for number, path in enumerate(paths):
            if (number % EVERY == EVERY - 1) == held_out:
                yield from documents(path, Reading(invalid="skip"))

    return {"train": texts(False), "valid": texts(True)}


def own(path: Path) -> Texts:
    """All documents of a user's file or folder, as training text; prepare holds some out."""
    files(path)
    return {"train": documents(path)}


def write_splits(folder: Path, name: str, texts: Texts, **facts: Any) -> dict[str, Any]:
    """Each split as JSON lines, and corpus.json, which says what they hold."""
    rows: dict[str, Any] = {}
    for split, found in texts.items():
        path = folder / f"{split}.jsonl"
        rows[split] = {"documents": 0, "characters": 0, "bytes": 0}
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for text in found:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                counts = {"documents": 1, "characters": len(text), "bytes": len(text.encode())}
                rows[split] = {key: value + counts[key] for key, value in rows[split].items()}
        if not rows[split]["documents"]:
            raise DataError(f"{name} has no text for {split}; give it more documents")
        rows[split]["sha256"] = digest(path)
    value = {"corpus": name, "kind": "language", "splits": rows, **facts, "origin": origin()}
    write_json(folder / DESCRIPTION, value)
    return value
