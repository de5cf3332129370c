"""The sections [data] and [prepare] of language modelling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from bathy.settings import Settings
from bathy.train.sections import read_sections

DATA_FILES = ("train.ids.npy", "train.bin")
"""What a data folder is known by where nothing in it says its task: ours, and nanoGPT's."""


class PrepareConfig(Settings, section="prepare"):
    """How text becomes a data folder."""

    changeable: ClassVar[bool] = True

    raw: str = ""
    """A file or folder of text: plain files (a document each) or JSON lines (.jsonl, a document per line), plain or
    compressed. A folder of nothing but train, valid and test, as `bathy corpus` writes it, has its splits already."""
    field: str = "text"
    """JSON lines: the key that holds a document's text."""
    endings: tuple[str, ...] = ()
    """Endings of the files that are read in a folder, e.g. [".txt", ".md"]; empty: all files."""
    invalid: Literal["stop", "skip"] = "stop"
    """What happens at a file that is not UTF-8 text."""
    vocabulary: Literal["bpe", "byte", "character"] = "bpe"
    """What a token is: byte-level BPE of data.vocab entries, a byte, or a character of the training text."""
    tokenizer: str = ""
    """An existing tokenizer.json to use instead."""
    valid_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share that is held out where the text has no validation split: of many documents every so many-th, of few the end of
    each."""


class DataConfig(Settings, section="data"):
    """What a model is trained on."""

    path: str = "data/stdlib"
    """The folder that prepare writes and train reads; one with nanoGPT's train.bin and val.bin can be read as well."""
    vocab: PositiveInt = 4096
    """Size of a BPE vocabulary to learn, special tokens and the 256 bytes included; of train.bin, its number of token ids."""
    windows: Literal["random", "packed"] = "random"
    """random: windows of the context's length from anywhere in the text. packed: documents in random order, each once per
    epoch, cut into such windows; a token sees its own document only."""
    corpus_tokens: NonNegativeInt = 0
    """Tokens of an epoch, for a plan before any data exist."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folder, as one of several."""
        return (Path(self.path),)


class Preparing(Settings):
    """The two sections that `bathy prepare` reads; the others in the file are for other commands."""

    data: DataConfig = DataConfig()
    prepare: PrepareConfig = PrepareConfig()


def read_preparing(path: Path | None, changes: Sequence[str] = ()) -> Preparing:
    """[data] and [prepare] of a config file, with changes on top."""
    values: dict[str, Any] = read_sections(path, changes)
    return Preparing(**{name: values[name] for name in Preparing.model_fields if name in values})
