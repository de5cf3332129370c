"""The sections [data] and [prepare]; apart from the others, so that the processes that prepare text need no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from bathy.nmt.sections import read_sections
from bathy.settings import Settings


class TextConfig(Settings, section="prepare"):
    """How a raw line becomes words, and words a line again."""

    source: str = "de"
    """Language of the source side: the ending of its files, and the rules that Moses applies."""
    target: str = "en"
    """Language of the target side."""
    normalise: bool = False
    """Moses' punctuation normalisation before all else."""
    tokeniser: Literal["moses", "space", "raw"] = "moses"
    """moses: words and punctuation as the Perl tools split them; space: the text is tokenised already; raw: BPE on the
    text as it is, spaces kept as ▁."""
    aggressive: bool = False
    """Moses: split at hyphens, foo @-@ bar."""
    escape: bool = False
    """Moses: write &apos; &quot; &amp; …, as the Perl tools do unless told otherwise; published BPE codes expect it."""
    lowercase: bool = False
    """Lower-case everything."""


class PrepareConfig(TextConfig, section="prepare"):
    """How raw text becomes a data folder."""

    raw: str = ""
    """Folder of raw text as `bathy corpus` lays it out: train.de, train.en, valid.de …, plain or compressed."""
    joint: bool = True
    """One BPE for both sides; else one each, in one id space."""
    merges: NonNegativeInt = 0
    """Learn this many merges, as the published recipes count, instead of filling data.vocab."""
    characters: NonNegativeInt = 0
    """Keep at most so many different characters; rarer ones become unknown. 0: all."""
    codes: str = ""
    """File of published subword-nmt codes (version 0.2) to replay instead of learning."""
    codes_target: str = ""
    """The target side's codes where they are not joint."""
    min_length: NonNegativeInt = 1
    """Drop training pairs with a shorter side."""
    max_length: NonNegativeInt = 0
    """Drop training pairs with a longer side; 0: no limit."""
    max_ratio: NonNegativeFloat = 0.0
    """Drop training pairs where one side is so many times longer than the other; 0: no limit."""
    measure: Literal["words", "subwords"] = "words"
    """What the three limits above count: words, before BPE, or subwords, after."""
    longest: PositiveInt = 1024
    """The most tokens, end mark included, that any stored sentence may have."""
    overlong: Literal["drop", "cut"] = "drop"
    """What happens to training pairs beyond `longest`; in the other splits they are cut, and counted."""
    invalid: Literal["stop", "skip"] = "stop"
    """What happens at a line that is not UTF-8."""
    deduplicate: bool = False
    """Keep the first of equal training pairs."""
    valid_every: NonNegativeInt = 0
    """Make every so many-th training pair a validation pair, where the corpus has no validation split."""
    workers: NonNegativeInt = 0
    """Processes; 0 uses all cores. It does not change the result."""
    keep_text: bool = True
    """Keep the tokenised text in .work, so that a change of vocabulary need not tokenise again."""

    @model_validator(mode="after")
    def consistent(self) -> Self:
        if self.source == self.target:
            raise ValueError(f"prepare.source and prepare.target are both {self.source!r}; they must differ")
        if self.max_length and self.max_length < self.min_length:
            raise ValueError(f"prepare.max_length is {self.max_length}; it must be at least prepare.min_length")
        if bool(self.codes_target) != bool(self.codes and not self.joint):
            raise ValueError("prepare.codes_target goes with prepare.codes and prepare.joint = false")
        return self


class DataConfig(Settings, section="data"):
    """What a model is trained on."""

    path: str | tuple[str, ...] = "data/toy"
    """The folder that prepare writes and train reads; train also takes several, with weights."""
    weights: tuple[NonNegativeFloat, ...] = ()
    """How often an epoch visits each folder's sentences: 2 twice, 0.5 every second epoch; empty: once."""
    vocab: PositiveInt = 8000
    """Size of the vocabulary to learn, the four marks and all characters included."""
    corpus_tokens: NonNegativeInt = 0
    """Target tokens of an epoch, for a plan before any data exist."""
    bpe_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Chance that a merge is left out, at each training encounter (Provilkov et al., 2020); 0.1 is usual."""

    @model_validator(mode="after")
    def weights_fit(self) -> Self:
        if self.weights and len(self.weights) != len(self.folders):
            raise ValueError(f"data.weights has {len(self.weights)} entries for {len(self.folders)} folders in data.path")
        if self.weights and not sum(self.weights):
            raise ValueError("data.weights are all 0; at least one folder must be used")
        return self

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of `path`, one or several."""
        return tuple(map(Path, (self.path,) if isinstance(self.path, str) else self.path))


class WithData(Protocol):
    """A config as far as preparing data goes."""

    @property
    def data(self) -> DataConfig: ...
    @property
    def prepare(self) -> PrepareConfig: ...


class Preparing(Settings):
    """The two sections that `bathy prepare` reads; the others in the file are for other commands."""

    data: DataConfig = DataConfig()
    prepare: PrepareConfig = PrepareConfig()


def read_preparing(path: Path | None, changes: Sequence[str] = ()) -> Preparing:
    """[data] and [prepare] of a config file, with changes on top."""
    values = read_sections(path, changes)
    return Preparing(**{name: values[name] for name in Preparing.model_fields if name in values})
