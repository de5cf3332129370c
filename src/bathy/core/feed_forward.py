"""The feed-forward branch, and the table of its kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from bathy.core.initial import find_initialisation
from bathy.core.residual import Branch, Matrix, Projections
from bathy.core.untouched import are, usual_rate
from bathy.errors import ConfigError, nearest
from bathy.kernels import fused_feed_forward as fused
from bathy.kernels.activation import activated
from bathy.kernels.dropout import Dropout
from bathy.kernels.products import Linear
from bathy.kernels.sublayer import Inner

if TYPE_CHECKING:
    from bathy.core.config import Architecture


@dataclass(frozen=True)
class Kind:
    """A row: the activation, and whether it opens a gate."""

    activation: type[nn.Module]
    reference: str
    gated: bool = False


FEED_FORWARDS: dict[str, Kind] = {
    "relu": Kind(nn.ReLU, "Vaswani et al., 2017"),
    "gelu": Kind(nn.GELU, "Hendrycks and Gimpel, 2016"),
    "swiglu": Kind(nn.SiLU, "Shazeer, 2020, GLU Variants Improve Transformer", gated=True),
    "geglu": Kind(nn.GELU, "Shazeer, 2020, GLU Variants Improve Transformer", gated=True),
}


def find_feed_forward(name: str) -> Kind:
    """The feed-forward of that name, or an error that names the nearest."""
    if name not in FEED_FORWARDS:
        known = ", ".join(FEED_FORWARDS)
        raise ConfigError(f"there is no feed-forward {name!r}.{nearest(name, FEED_FORWARDS)} Known: {known}.")
    return FEED_FORWARDS[name]


class FeedForward(Branch):
    """dropout(W₂ · dropout(h)) with h = activation(W₁ · x), or, gated, h = activation(W_gate · x) ⊙ W₁ · x."""

    kind = "ffn"

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        kind, draw_ = find_feed_forward(config.feed_forward), find_initialisation(config.init).draw_
        width, ffn = config.width, config.ffn
        self.gated = kind.gated
        self.fc1 = Projections(width, (ffn, ffn), config.biases) if kind.gated else Linear(width, ffn, config.biases)
        self.fc2 = Linear(ffn, width, config.biases)
        self.activation: nn.Module = kind.activation()
        self.activation_dropout, self.dropout = Dropout(config.activation_dropout), Dropout(config.dropout)
        self.inner: nn.Module = nn.Identity()
        self.inner_width = ffn
        draw_(self.fc1, rows=ffn)  # gate and W₁ each as a matrix of its own
        draw_(self.fc2)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.fc2(self.inner(self.hidden(x))))

    def hidden(self, x: Tensor) -> Tensor:
        """dropout(h)."""
        if self.gated:
            gate, up = self.fc1(x)
            return self.activation_dropout(self.activation(gate) * up)
        return activated(self.activation, self.fc1(x), self.activation_dropout.p if self.training else 0.0)

    def inner_kernel(self, x: Tensor, *context: Any) -> Inner | None:
        """W₂ · dropout(h) for a fused sub-layer."""
        rate, kind = usual_rate(self.activation_dropout, self.training), type(self.activation)
        known = are(Linear, self.fc2) and are(Projections if self.gated else Linear, self.fc1) and are(nn.Identity, self.inner)
        if rate is None or not known or not fused.can_fuse(self.activation, self.gated):
            return None
        weights = self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias
        return fused.FeedForward(*weights, kind, self.gated, rate)

    def matrices(self) -> list[Matrix]:
        """fc1, and the gate where there is one, read the stream."""
        gate, up = slice(0, self.inner_width), slice(self.inner_width, None)
        first = [Matrix("gate", self.fc1, gate, reads=True)] if self.gated else []
        return [*first, Matrix("fc1", self.fc1, up if self.gated else slice(None), reads=True), Matrix("fc2", self.fc2)]
