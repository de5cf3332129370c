"""The sections [data] and [prepare]; apart from the others, so that the processes that prepare text need no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from bathy.settings import Settings
from bathy.tasks.special_tokens import SPECIALS
from bathy.train.sections import read_sections

Stage = TypeVar("Stage", bound=Settings)
DATA_FILES = ("train.source.ids.npy",)
"""What a data folder is known by where nothing in it says its task."""


class TextConfig(Settings, section="prepare"):
    """How a raw line becomes words, and words a line again."""

    source: str = "de"
    """Language of the source side: the ending of its files, and the rules that Moses applies."""
    target: str = "en"
    """Language of the target side."""
    normalise: bool = False
    """Moses' punctuation normalisation before all else."""
    tokeniser: Literal["moses", "space", "raw", "sentencepiece"] = "moses"
    """moses: words and punctuation as the Perl tools split them; space: the text is tokenised already; raw: BPE on the
    text as it is, spaces kept as ▁; sentencepiece: SentencePiece on the text as it is."""
    aggressive: bool = False
    """Moses: split at hyphens, foo @-@ bar."""
    escape: bool = False
    """Moses: write &apos; &quot; &amp; …, as the Perl tools do unless told otherwise; published BPE codes expect it."""
    lowercase: bool = False
    """Lower-case everything."""


class LimitsConfig(Settings, section="prepare"):
    """Which training pairs are too short, too long or too unequal."""

    min_length: NonNegativeInt = 1
    """Drop training pairs with a shorter side."""
    max_length: NonNegativeInt = 0
    """Drop training pairs with a longer side; 0: no limit."""
    max_ratio: NonNegativeFloat = 0.0
    """Drop training pairs where one side is so many times longer than the other; 0: no limit."""
    measure: Literal["words", "subwords"] = "words"
    """What the three limits above count: words, before BPE, or subwords, after."""


class HoldOutConfig(Settings, section="prepare"):
    """Which training pairs are kept for validation."""

    valid_every: NonNegativeInt = 0
    """Make every so many-th training pair a validation pair, where the corpus has no validation split."""


class CleanConfig(TextConfig, LimitsConfig, section="prepare"):
    """All that tokenising and cleaning read."""

    invalid: Literal["stop", "skip"] = "stop"
    """What happens at a line that is not UTF-8."""
    deduplicate: bool = False
    """Keep the first of equal training pairs."""


class LearnConfig(HoldOutConfig, section="prepare"):
    """All that learning subwords reads, besides the tokenised text and data.vocab."""

    joint: bool = True
    """One BPE for both sides; else one each, in one id space."""
    merges: NonNegativeInt = 0
    """Learn this many merges, as the published recipes count, instead of filling data.vocab."""
    characters: NonNegativeInt = 0
    """Keep at most so many different characters; rarer ones become unknown. 0: all."""
    codes: str = ""
    """File to use instead of learning: published subword-nmt codes (version 0.2), or a SentencePiece .model."""
    codes_target: str = ""
    """The target side's file where they are not joint."""
    model_type: Literal["unigram", "bpe"] = "unigram"
    """SentencePiece: how pieces are learned, by likelihood or by merges."""
    byte_fallback: bool = False
    """SentencePiece: spell unknown characters as bytes; nothing is unknown then."""
    symbols: tuple[str, ...] = ()
    """SentencePiece: texts that always are one piece, for example tags."""


class EncodeConfig(LimitsConfig, HoldOutConfig, section="prepare"):
    """All that encoding reads, besides the tokenised text and the subwords."""

    longest: PositiveInt = 1024
    """The most tokens, EOS included, that any stored sentence may have."""
    overlong: Literal["drop", "cut"] = "drop"
    """What happens to training pairs beyond `longest`; in the other splits they are cut, and counted."""


class PrepareConfig(EncodeConfig, LearnConfig, CleanConfig, section="prepare"):
    """How raw text becomes a data folder."""

    changeable: ClassVar[bool] = True

    raw: str = ""
    """Folder of raw text as `bathy corpus` lays it out: train.de, train.en, valid.de …, plain or compressed."""
    workers: NonNegativeInt = 0
    """Processes; 0 uses all cores. It does not change the result."""
    keep_text: bool = True
    """Keep the tokenised text in .work, so that a change of vocabulary need not tokenise again."""

    def only(self, stage: type[Stage]) -> Stage:
        """The settings that one stage may read, and nothing else: its cache key is made of the same."""
        return stage(**{name: getattr(self, name) for name in stage.model_fields})

    @model_validator(mode="after")
    def consistent(self) -> Self:
        if self.source == self.target:
            raise ValueError(f"prepare.source and prepare.target are both {self.source!r}; they must differ")
        if self.max_length and self.max_length < self.min_length:
            raise ValueError(f"prepare.max_length is {self.max_length}; it must be at least prepare.min_length")
        if bool(self.codes_target) != bool(self.codes and not self.joint):
            raise ValueError("prepare.codes_target goes with prepare.codes and prepare.joint = false")
        return self.sentencepiece_fits()

    def sentencepiece_fits(self) -> Self:
        """Refuse settings that SentencePiece does not know, and its own without it."""
        if self.tokeniser == "sentencepiece" and self.merges:
            raise ValueError("prepare.merges does not go with SentencePiece; data.vocab is the number of pieces")
        if self.tokeniser != "sentencepiece" and (self.byte_fallback or self.symbols or self.model_type != "unigram"):
            raise ValueError(
                "prepare.model_type, byte_fallback and symbols are SentencePiece's; set prepare.tokeniser = 'sentencepiece'"
            )
        words = {symbol for symbol in self.symbols if symbol.split() == [symbol]}  # a space would never be inside a piece
        if len(words - {*SPECIALS}) < len(self.symbols):
            raise ValueError(
                f"prepare.symbols is {self.symbols!r}; each must be a text of its own without spaces, and no special token"
            )
        return self


class DataConfig(Settings, section="data"):
    """What a model is trained on."""

    path: str | tuple[str, ...] = "data/toy"
    """The folder that prepare writes and train reads; train also takes several, with weights."""
    weights: tuple[NonNegativeFloat, ...] = ()
    """How often an epoch visits each folder's sentences: 2 twice, 0.5 every second epoch; empty: once."""
    vocab: PositiveInt = 8000
    """Size of the vocabulary to learn, the four special tokens and all characters included."""
    corpus_tokens: NonNegativeInt = 0
    """Target tokens of an epoch, for a plan before any data exist."""
    bpe_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Chance that a merge is left out, at each training encounter (Provilkov et al., 2020); 0.1 is usual."""

    @model_validator(mode="after")
    def weights_fit(self) -> Self:
        if not self.folders or not all((self.path,) if isinstance(self.path, str) else self.path):
            raise ValueError(f"data.path is {self.path!r}; it must name at least one folder")
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
    values: dict[str, Any] = read_sections(path, changes)
    return Preparing(**{name: values[name] for name in Preparing.model_fields if name in values})
