"""Constants of the schemes, as their papers give them: n sub-layers of a stack, N and M layers of encoder and decoder."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bathy.core.residual import Place


def omega_log(n: int) -> float:
    """√((n+1)/ln(n+1) − 1): ω for an output change of O(log n) over n sub-layers."""
    return math.sqrt((n + 1) / math.log(n + 1) - 1)


def deepnorm_constants(place: Place) -> tuple[float, float]:
    """(α, β): (2N)^¼ and (8N)^−¼ for a single stack; with N and M, 0.81(N⁴M)^(1/16), 0.87(N⁴M)^(−1/16); (3M)^¼, (12M)^−¼."""
    n, m = place.encoder_layers, place.decoder_layers
    if not place.paired:
        return (2 * place.layers) ** 0.25, (8 * place.layers) ** -0.25
    if place.stack == "encoder":
        return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
    return (3 * m) ** 0.25, (12 * m) ** -0.25


def t_fixup_gain(place: Place) -> float:
    """0.67 N^(−1/4) in an encoder or a single stack, (9M)^(−1/4) in a decoder."""
    if place.stack == "decoder" and place.paired:
        return float((9 * place.layers) ** -0.25)
    return float(0.67 * place.layers**-0.25)


def sub_ln_gain(place: Place) -> float:
    """γ: √ln(2N) for a single stack; with N and M, √(⅓ ln(3M) ln(2N)) in the encoder and √ln(3M) in the decoder."""
    if not place.paired:
        return math.sqrt(math.log(2 * place.layers))
    decoder = math.log(3 * place.decoder_layers)
    return math.sqrt(decoder if place.stack == "decoder" else decoder * math.log(2 * place.encoder_layers) / 3)


def layer_scale_value(layers: int) -> float:
    """λ at the start: 0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond."""
    return 0.1 if layers <= 18 else 1e-5 if layers <= 24 else 1e-6


@dataclass(frozen=True)
class Rates:
    """Multipliers for one parameter: of the learning rate, of Adam's ε and of the (decoupled) weight decay."""

    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0


def completep_rates(place: Place, part: str) -> Rates:
    """CompleteP's with α = 1, for a part: matrix or vector in a block, embedding, head, or other.

    m = D/D₀, N/N₀ the depth: matrices 1/m, ε/m · (N₀/N), decay · m; other vectors of blocks ε/m · (N₀/N); the rest ε/m.
    Embeddings drawn with deviation D^(−½) are E′/√m: rate and ε carry over by 1/√m, decay by √m.
    """
    m, depth = place.wider, place.deeper
    if part == "matrix":
        return Rates(1 / m, 1 / (m * depth), m)
    if part == "head":
        return Rates(1 / m, 1 / m, m)
    if part == "embedding" and place.init == "xavier":
        return Rates(m**-0.5, m**-0.5, m**0.5)
    return Rates(eps=1 / (m * depth) if part == "vector" else 1 / m)
