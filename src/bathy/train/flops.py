"""What this machine's matrix products reach: the peak that training speed is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from bathy.kernels.packed import can_pack
from bathy.kernels.products import onednn


class Peak(NamedTuple):
    """The best product that a machine can do."""

    speed: float
    """Operations per second; on a CPU, of its processor time."""
    by: str
    """The library that does it: torch.mm, or onednn."""


def gemm_peak(device: torch.device, dtype: torch.dtype = torch.float32, seconds: float = 0.3) -> Peak:
    """The product [4096 × 512] · [512 × 1024] here and now, by each library in turn; the faster counts."""
    a, b = torch.randn(4096, 512, device=device, dtype=dtype), torch.randn(512, 1024, device=device, dtype=dtype)
    out = a @ b
    ways: dict[str, Callable[[], object]] = {"torch.mm": lambda: torch.mm(a, b, out=out)}
    if device.type == "cpu" and can_pack(dtype):
        ways["onednn"] = lambda: onednn(a, b.T, None)
    speeds = {name: _speed(way, device, seconds / len(ways)) for name, way in ways.items()}
    best = max(speeds, key=speeds.__getitem__)
    return Peak(2 * 4096 * 512 * 1024 * speeds[best], best)


def _speed(way: Callable[[], object], device: torch.device, seconds: float) -> float:
    """How often a product is done in a second."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    way()
    start, done = clock(), 0
    while clock() - start < seconds:
        way()
        done += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return done / (clock() - start)
