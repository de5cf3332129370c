"""Built-in text for the examples: the lines of `import this`, letter by letter, 15 % of them hidden, as BERT is trained."""

import codecs
import contextlib
import io
import math

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

with contextlib.redirect_stdout(io.StringIO()):  # the module prints its text
    import this

LENGTH, VOCAB, HIDDEN = 48, 128, 1
LINES = [line[:LENGTH].ljust(LENGTH) for line in codecs.decode(this.s, "rot13").splitlines()[2:]]
TEXT = torch.tensor([list(line.encode()) for line in LINES])


def masked_lines(generator: torch.Generator, rows: int = 16) -> dict[str, Tensor]:
    """A batch of random lines: hidden letters in `input_ids`, what they were in `labels`."""
    ids = TEXT[torch.randint(len(TEXT), (rows,), generator=generator)]
    hidden = torch.rand(ids.shape, generator=generator) < 0.15
    return {"input_ids": ids.masked_fill(hidden, HIDDEN), "labels": ids.masked_fill(~hidden, -100)}


def xavier_range(width: int) -> float:
    """√(2/(5·width)): the deviation of Xavier's fc1 and fc2 at four times the width.

    Hugging Face draws every matrix with deviation 0.02, whatever the width. At width 64 that leaves branches with a variance
    of 0.0005 beside a stream of 1: such a model is no deep one, however many layers it has. With this range the branches
    weigh as much as in the Transformer's original initialisation, and depth becomes the problem that it is.
    """
    return math.sqrt(2 / (5 * width))


def deep_bert(layers: int, width: int = 64, initializer_range: float | None = None) -> BertForMaskedLM:
    """Hugging Face's BERT for masked letters, with random weights."""
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers, "num_attention_heads": 4}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    scale = initializer_range or xavier_range(width)
    return BertForMaskedLM(
        BertConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, initializer_range=scale, **sizes, **no_dropout)
    )
