"""Which way a tensor takes: torch's own operations, or ours, written for a CPU.

Only this file asks for device, precision and mode; each kernel beside it has both ways, and a test that they agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

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
    return kind and _on_cpu(x) and not torch.is_autocast_enabled("cpu")


def own_attention(q: Tensor, rate: float) -> bool:
    """In training on a CPU torch's attention takes longer with dropout, and far longer in bfloat16."""
    slow = rate > 0 or (not is_fake(q) and q.dtype == torch.bfloat16 and torch.is_grad_enabled())
    return slow and _on_cpu(q)


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
    looked_at = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    if looked_at or torch._C._functorch.peek_interpreter_stack() is not None or not x.dtype.is_floating_point:
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
