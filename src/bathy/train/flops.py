"""What this machine's matrix products reach: the peak that training speed is compared with."""

from __future__ import annotations

import time

import torch


def gemm_peak(device: torch.device, dtype: torch.dtype = torch.float32, seconds: float = 0.3) -> float:
    """Operations per second of the product [4096 × 512] · [512 × 1024] here and now; on a CPU, of its processor time."""
    a, b = torch.randn(4096, 512, device=device, dtype=dtype), torch.randn(512, 1024, device=device, dtype=dtype)
    out = a @ b
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    start, done = clock(), 0
    while clock() - start < seconds:
        torch.mm(a, b, out=out)
        done += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return done * 2 * 4096 * 512 * 1024 / (clock() - start)
