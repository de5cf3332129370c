"""Which way a tensor takes: torch's own operations, or ours, written for a CPU.

Only this file asks for device, precision and mode; each kernel beside it has both ways, and a test that they agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from bathy.kernels.compiled import can_attend
from bathy.kernels.library import with_compiled

PLAIN = (Tensor, nn.Parameter)
"""Tensors without a mind of their own; a subclass, such as a shard, may compute in its own way."""
_by_modules: list[bool] = []


def _on_cpu(x: Tensor) -> bool:
    """On a CPU and not under torch.compile, which fuses what we write by hand."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def is_fake(x: Tensor) -> bool:
    """Whether it has a shape and no memory: a plan counts with such tensors, for any device."""
    return isinstance(x, FakeTensor)


def own_dropout(x: Tensor) -> bool:
    """Torch draws its masks on a CPU one by one."""
    return _on_cpu(x)


def own_products(x: Tensor) -> bool:
    """In training in float32 on a CPU another library may be faster than torch's; under autocast torch casts, and does well."""
    kind = x.dtype == torch.float32 and not is_fake(x) and torch.is_grad_enabled()
    return kind and _on_cpu(x) and not torch.is_autocast_enabled("cpu") and not _looked_at()


def own_attention(q: Tensor, rate: float) -> bool:
    """In training on a CPU torch's attention takes longer with dropout, and far longer in bfloat16."""
    slow = rate > 0 or (not is_fake(q) and q.dtype == torch.bfloat16 and torch.is_grad_enabled())
    return slow and _on_cpu(q)


def own_operations(*given: Tensor | None) -> bool:
    """Whether compiled kernels take these in training as operations of their own: nobody records or compiles them."""
    seen = torch.compiler.is_compiling() or _looked_at() or torch.is_autocast_enabled("cpu")
    return not seen and torch.is_grad_enabled() and own_rows(*given)


def own_rows(*given: Tensor | None) -> bool:
    """Whether compiled kernels take these inside an operation of ours: float32 on a CPU, in one piece."""
    if not with_compiled():
        return False
    for x in given:  # a plain loop: this is asked hundreds of times in an update
        if x is not None and not (x.dtype is torch.float32 and x.is_cpu and type(x) in PLAIN and x.is_contiguous()):
            return False
    return True


def own_short(x: Tensor, width: int, keys: int) -> bool:
    """Whether compiled kernels take attention with x as queries (b t …) in training: short, with heads of whole vectors."""
    right = x.dtype == torch.float32 and x.device.type == "cpu" and type(x) in PLAIN and x.numel() > 0
    return right and own_operations() and can_attend(width, x.shape[1], keys)


def _looked_at() -> bool:
    """Whether a dispatch mode records operations, or a transform of torch.func is at work."""
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    return bool(modes) or torch._C._functorch.peek_interpreter_stack() is not None


@contextmanager
def by_modules() -> Iterator[None]:
    """A block in which no sub-layer is fused: what a benchmark compares with."""
    _by_modules.append(True)
    try:
        yield
    finally:
        _by_modules.pop()


def own_sublayer(x: Tensor, *others: Tensor | None) -> bool:
    """In training on a CPU, in one precision throughout, while nobody looks at single operations: torch.compile, a dispatch
    mode that records them, or a transform of torch.func."""
    if _by_modules or not (torch.is_grad_enabled() and _on_cpu(x) and x.numel()) or torch.is_autocast_enabled("cpu"):
        return False
    if _looked_at() or not x.dtype.is_floating_point:
        return False
    return all(other is None or (other.dtype == x.dtype and type(other) in PLAIN) for other in (x, *others))


def own_rotation(x: Tensor) -> bool:
    """Ours writes each half once; torch makes four products, two sums and a copy."""
    return _on_cpu(x)


def repeated_keys(q: Tensor) -> bool:
    """Whether keys and values are repeated for grouped heads before torch's attention: its CPU kernel knows no groups."""
    return _on_cpu(q)


def own_weighted() -> bool:
    """Ours takes half of torch's time wherever it runs; torch.compile does as well by itself."""
    return not torch.compiler.is_compiling()
