"""A run's model continues prompts: text in, text out, as it comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bathy.core.transformer import Transformer
from bathy.errors import ConfigError
from bathy.tasks.language.codec import Codec
from bathy.tasks.language.models import load_with_codec
from bathy.tasks.language.sampling import Sampling, continued


class Sampler:
    """A model and its codec; `stream` gives each sequence's new text step by step, `texts` whole continuations."""

    def __init__(self, model: Transformer, codec: Codec) -> None:
        self.model, self.codec = model.eval(), codec
        if model.config.stacks != ["decoder"]:
            raise ConfigError("only a causal model (decoder layers alone) continues text; this one predicts hidden tokens")

    @classmethod
    def load(cls, folder: Path, average: int = 1, which: str = "last") -> Sampler:
        """The model of a run, checkpoint or model folder."""
        return cls(*load_with_codec(folder, average, which))

    def stream(self, prompts: Sequence[str], sampling: Sampling) -> Iterator[list[str]]:
        """For each step the text that it completes in every sequence; a document begins with every prompt."""
        ids = [[self.codec.end, *self.codec.encode(prompt).tolist()] for prompt in prompts]
        decoders = [self.codec.stream() for _ in prompts]
        for step in continued(self.model, ids, sampling, self.codec.end):
            pairs = zip(step, decoders, strict=True)
            yield [(decoder.step(self.codec.tokenizer, token) or "") if token >= 0 else "" for token, decoder in pairs]

    def texts(self, prompts: Sequence[str], sampling: Sampling) -> list[str]:
        """Each prompt's continuation."""
        return ["".join(parts) for parts in zip(*self.stream(prompts, sampling), strict=True)]
