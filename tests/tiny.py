"""Small models and batches that the tests share."""

from typing import Any

import torch
from torch import Tensor

from bathy import SCHEMES, Transformer, TransformerConfig

ARCHITECTURES = {"encoder-decoder": (3, 2), "encoder-only": (3, 0), "decoder-only": (0, 3)}
FOLDING = [name for name, scheme in SCHEMES.items() if scheme.folds]


def config(scheme: str = "admin", depths: tuple[int, int] = (3, 2), **changes: Any) -> TransformerConfig:
    settings: dict[str, Any] = {
        "vocab": 50,
        "width": 16,
        "ffn": 24,
        "heads": 2,
        "encoder_scheme": scheme,
        "decoder_scheme": scheme,
    }
    return TransformerConfig(**settings | {"encoder_layers": depths[0], "decoder_layers": depths[1]} | changes)


def model(scheme: str = "admin", depths: tuple[int, int] = (3, 2), seed: int = 0, **changes: Any) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(config(scheme, depths, **changes))


def shake_(model: Transformer, seed: int = 1) -> Transformer:
    """Random ω in [½, 4] and random values on top of norms, biases and other small parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "skip.omega" in name:
                parameter.copy_(0.5 + 3.5 * torch.rand(parameter.shape, generator=generator))
            elif parameter.dim() < 2:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def sentences(rows: int = 4, length: int = 9, vocab: int = 50, seed: int = 2) -> Tensor:
    """Token ids of unequal length, padded on the right with 0; the first row is full."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, vocab, (rows, length), generator=generator)
    lengths = torch.randint(2, length + 1, (rows, 1), generator=generator)
    lengths[0] = length
    return tokens.masked_fill(torch.arange(length) >= lengths, 0)


def batch(model: Transformer, rows: int = 4) -> tuple[Tensor, ...]:
    """What the model's forward takes."""
    return tuple(sentences(rows, 9 - 2 * i, model.config.vocab, seed=2 + i) for i in range(len(model.config.stacks)))
