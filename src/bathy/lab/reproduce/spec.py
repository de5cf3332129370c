"""A run that items ask for: what it is called, and how its config differs from the scale's recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PAIRS = {"hybrid": ("post_ln", "pre_ln")}
"""Schemes that differ between encoder and decoder: Table 1's second row."""
THREE = ("post_ln", "pre_ln", "admin")
"""The paper's comparison."""


def both(scheme: str) -> tuple[str, str]:
    """The schemes of encoder and decoder."""
    return PAIRS.get(scheme, (scheme, scheme))


@dataclass(frozen=True)
class Spec:
    """One run, up to its seed."""

    name: str
    """Its numbers are called name.ppl and so on."""
    scheme: str
    """A scheme for both stacks, or `hybrid`."""
    layers: int | tuple[int, int]
    changes: tuple[str, ...] = ()
    """Further `section.key=value`."""
    dataset: str = "ende"
    """Which dataset it is trained on, by the scale's names: iwslt, ende, enfr or multi30k."""
    folder: str = ""
    """Name of its run folder, where that is not its own name: runs of the same config are shared."""

    def config_changes(self) -> list[str]:
        """The run as changes of a recipe."""
        encoder, decoder = both(self.scheme)
        first, second = self.layers if isinstance(self.layers, tuple) else (self.layers, self.layers)
        schemes = [f"model.encoder_scheme={encoder}", f"model.decoder_scheme={decoder}"]
        return [*schemes, f"model.encoder_layers={first}", f"model.decoder_layers={second}", *self.changes]


def stack(schemes: Sequence[str], layers: int, dataset: str = "ende") -> list[Spec]:
    """The plain run of each scheme at a depth."""
    return [Spec(f"{scheme}_{layers}", scheme, layers, (), dataset) for scheme in schemes]
