"""A language model together with its tokenizer."""

from __future__ import annotations

from pathlib import Path

from bathy.console import warn
from bathy.core.transformer import Transformer
from bathy.errors import ConfigError
from bathy.tasks.language.codec import Codec
from bathy.tasks.models import home, load


def load_with_codec(folder: Path, average: float = 1, which: str = "last") -> tuple[Transformer, Codec]:
    """The model and the codec of a run, checkpoint or model folder.

    A tokenizer with more ids than the model has is refused. One with fewer is used with a warning: a vocabulary may have been
    rounded up, as that of a .bin file often is.
    """
    model, codec = load(folder, average, which), Codec.load(home(folder))
    problem = f"the model of {folder} has {model.config.vocab} token ids, its tokenizer {codec.vocab}"
    if codec.vocab > model.config.vocab:
        raise ConfigError(f"{problem}; they do not belong together: restore the tokenizer that it was trained with")
    if codec.vocab < model.config.vocab:
        warn(f"{problem}; unless its vocabulary was rounded up, they do not belong together")
    return model, codec
