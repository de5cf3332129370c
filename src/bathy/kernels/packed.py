"""Matrix products for inference with a weight that is packed once, as oneDNN's kernels read it.

On a CPU `F.linear` gives the weight to MKL as it lies in memory. oneDNN, which is inside torch, takes a packed copy: for the
few rows of a decoding step it is two to four times as fast, for hundreds of rows 1.2 times. A call costs 10 µs more, so that
small products stay with `F.linear`. The operators are not public: their result is compared with `F.linear` before use.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

SMALL = 1 << 17
"""Entries of a weight up to which packing saves less than its call costs."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference from `F.linear`, relative to the largest output; other number formats are not packed."""


class PackedLinear:
    """x Wᵀ + b without gradients; W stays as it is when this is made, later changes are not seen."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int = 4) -> None:
        """`rows` is the number of inputs that packing is tuned for; any number works."""
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        usable = weight.numel() > SMALL and weight.device.type == "cpu" and can_pack(weight.dtype)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, rows) if usable else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: rows × inputs."""
        if self.packed is None:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether torch has oneDNN's packed product here, and it agrees with `F.linear`."""
    if dtype not in TOLERANCE or not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in ((5, 96), (160, 96), (160,)))
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 5)
        found = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    expected = F.linear(x, weight, bias)
    return bool((found - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max())
