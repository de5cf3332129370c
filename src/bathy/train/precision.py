"""Number formats of training: autocast with float32 weights, float16's loss scale, and updates that are not finite.

The scale starts at 128, doubles after 256 good updates, halves on overflow and never goes below 1/32; 20 overflows in a row at
that floor, or 20 gradients in a row that are not finite in another format, stop the run. Scales are powers of two, so that
scaling changes no digit of a gradient that float16 can hold.

GPUs multiply float16 matrices with sums in float32 and round the result. Most CPUs have no instruction for it and torch takes
thirteen times float32's time; `Products` does the same by float32's routines.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bathy.errors import Diverged

START, GROW_AFTER, FLOOR, MOST_OVERFLOWS = 128.0, 256, 0.03125, 20
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
PRODUCTS = {getattr(torch.ops.aten, name) for name in ("mm", "addmm", "bmm", "baddbmm")}


class Products(TorchDispatchMode):
    """Where products of float16 matrices, forward and backward, are float32 products of them, rounded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation of torch."""
        kwargs = dict(kwargs or {})
        if func.overloadpacket not in PRODUCTS or args[0].dtype != torch.float16 or args[0].device.type != "cpu":
            return func(*args, **kwargs)
        out = kwargs.pop("out", None)
        result = func.overloadpacket(*(arg.float() if isinstance(arg, Tensor) else arg for arg in args), **kwargs)
        return result.half() if out is None else out.copy_(result)


class Precision:
    """How one run computes: `autocast()` round the forward pass, `scale` on the loss, `update` after each gradient."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self.device = name, device
        self.scale = START if name == "float16" else 1.0
        self.good = 0
        """Updates since the scale last changed."""
        self.overflows = 0
        """Gradients in a row that were not finite although the scale could not fall."""

    @property
    def dtype(self) -> torch.dtype:
        """What weights are kept in."""
        return torch.float64 if self.name == "float64" else torch.float32

    @property
    def product_dtype(self) -> torch.dtype:
        """What matrix products are computed in: the format itself, but for float16 on a CPU."""
        if self.name == "float16" and self.device.type == "cpu":
            return torch.float32
        return HALVES.get(self.name, self.dtype)

    def autocast(self) -> AbstractContextManager[Any]:
        """Where matrix products run in the half format."""
        if self.name not in HALVES:
            return nullcontext()
        return torch.autocast(self.device.type, HALVES[self.name])

    def products(self) -> AbstractContextManager[Any]:
        """Where matrix products take no longer than need be: all of training."""
        if self.name != "float16" or self.device.type != "cpu":
            return nullcontext()
        return Products()  # type: ignore[no-untyped-call]

    def update(self, finite: bool) -> None:
        """Learn whether the gradient was finite, hence used; change the scale."""
        scaled = self.name == "float16"
        if finite:
            self.good, self.overflows = self.good + 1, 0
            if scaled and self.good == GROW_AFTER:
                self.scale, self.good = self.scale * 2, 0
            return
        self.good = 0
        self.overflows += not scaled or self.scale <= FLOOR
        if scaled:
            self.scale = max(FLOOR, self.scale / 2)

    def check(self, where: str) -> None:
        """Stop a run that overflows again and again; `where` says where it began."""
        if self.overflows < MOST_OVERFLOWS:
            return
        if self.name == "float16":
            raise Diverged(
                f"float16 overflowed {MOST_OVERFLOWS} times in a row at the smallest loss scale ({FLOOR}), first at {where}: "
                "activations or gradients do not fit; use train.precision = 'bfloat16' or a lower optim.lr",
                overflow=True,
            )
        raise Diverged(
            f"the gradient was not finite {MOST_OVERFLOWS} times in a row, first at {where}; lower optim.lr, lengthen "
            "optim.warmup or set optim.clip, and resume from the last checkpoint with --allow-changes",
            overflow=self.name in HALVES,
        )

    def state_dict(self) -> dict[str, Any]:
        """The scale and its counters."""
        return {"scale": self.scale, "good": self.good, "overflows": self.overflows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; a scale is float16's alone."""
        self.good, self.overflows = state["good"], state["overflows"]
        self.scale = state["scale"] if self.name == "float16" else 1.0
