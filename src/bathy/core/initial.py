"""First values of matrices and embeddings: the table of initialisations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from bathy.errors import ConfigError, nearest

DEVIATION = 0.02
"""GPT-2's standard deviation of every matrix and embedding."""


def xavier_(*linears: nn.Linear, rows: int = 0) -> None:
    """Draw the linear layers as parts of one Xavier-uniform matrix of `rows`, by default all of theirs; biases 0.

    For q, k and v that is an effective gain of 1/√2.
    """
    rows = rows or sum(linear.out_features for linear in linears)
    bound = (6 / (rows + linears[0].in_features)) ** 0.5
    for linear in linears:
        nn.init.uniform_(linear.weight, -bound, bound)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def normal_(*linears: nn.Linear, rows: int = 0) -> None:
    """Draw every entry from a normal of deviation 0.02, biases 0."""
    for linear in linears:
        nn.init.normal_(linear.weight, std=DEVIATION)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


@dataclass(frozen=True)
class Initialisation:
    """A row: how matrices and embeddings are drawn."""

    draw_: Callable[..., None]
    """Draws linear layers; several at once are the parts of one matrix."""
    embedding: Callable[[int], float]
    """Standard deviation of embeddings, from the width."""
    by_depth: bool = False
    """Whether the last matrix of every branch is divided by √n, n the stack's sub-layers, unless a scheme objects."""


INITIALISATIONS: dict[str, Initialisation] = {
    "xavier": Initialisation(xavier_, lambda width: width**-0.5),
    "normal": Initialisation(normal_, lambda width: DEVIATION, by_depth=True),
}
"""xavier: Glorot and Bengio, 2010, as fairseq draws it. normal: Radford et al., 2019 (GPT-2)."""


def find_initialisation(name: str) -> Initialisation:
    """The initialisation of that name, or an error that names the nearest."""
    if name not in INITIALISATIONS:
        known = ", ".join(INITIALISATIONS)
        raise ConfigError(f"there is no initialisation {name!r}.{nearest(name, INITIALISATIONS)} Known: {known}.")
    return INITIALISATIONS[name]
