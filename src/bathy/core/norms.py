"""LayerNorm, RMSNorm and ScaleNorm under one signature: `norm(width, bias)`, with γ that folding can multiply."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bathy.errors import ConfigError, SchemeError, unknown
from bathy.kernels.norm import Norm as Rows
from bathy.kernels.norm import layer_norm

Norm = Callable[..., nn.Module]
"""Makes a norm for a width, with or without a `bias` where it can have one."""


class LayerNorm(nn.LayerNorm):
    """γ · (x − μ)/σ + ν over the last dimension, eps 1e-5 (Ba et al., 2016); without `bias` there is no ν."""

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__(width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, Rows(self.weight, self.bias, self.eps), self.training)

    def scale_(self, factor: Tensor | float) -> None:
        """Multiply what this norm gives by `factor`: γ and ν both."""
        with torch.no_grad():
            self.weight.mul_(factor)
            if self.bias is not None:
                self.bias.mul_(factor)


class RMSNorm(nn.RMSNorm):
    """γ · x/√(mean x² + eps) over the last dimension (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, bias: bool = False) -> None:
        super().__init__(width, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        """In γ's number format; what is in another one, under autocast, comes back in its own."""
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)

    def scale_(self, factor: Tensor | float) -> None:
        """Multiply what this norm gives by `factor`."""
        with torch.no_grad():
            self.weight.mul_(factor)


class ScaleNorm(nn.Module):
    """g · x/√(mean x² + eps), g one learned number (Nguyen and Salazar, 2019; their g is ours times √D)."""

    def __init__(self, width: int, bias: bool = False) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, (self.width,), eps=1e-5) * self.weight

    def scale_(self, factor: Tensor | float) -> None:
        """Multiply what this norm gives by `factor`, which must be one number."""
        values = torch.as_tensor(factor).unique()
        if values.numel() > 1:
            raise SchemeError("norm 'scale' has one number and cannot take up a vector ω; use norm 'layer' or 'rms'")
        with torch.no_grad():
            self.weight.mul_(values[0])


NORMS: dict[str, Norm] = {"layer": LayerNorm, "rms": RMSNorm, "scale": ScaleNorm}


def find_norm(name: str) -> Norm:
    """The norm of that name, or an error that names the nearest."""
    if name not in NORMS:
        raise ConfigError(unknown("norm", name, NORMS))
    return NORMS[name]
