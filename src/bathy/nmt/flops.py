"""Floating-point operations of training, counted for real tokens only, and what this machine's matrix products reach.

A product of an n × a and an a × b matrix is 2nab operations; the backward pass costs twice the forward pass. Counted are all
matrices (embeddings are looked up, the output matrix is not) and attention's two products; norms, dropout, activations and the
optimiser are not: they are overhead.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from bathy.transformer import Architecture

BACKWARD = 3
"""Forward and backward together, in forward passes."""


def matrix_flops(model: Architecture, vocab: int) -> tuple[float, float]:
    """Operations of the matrices in training for each source token and each target token."""
    square, ffn = 2 * model.width**2, 4 * model.width * model.ffn
    keys = model.decoder_layers * 2 * square if len(model.stacks) == 2 else 0
    source = model.encoder_layers * (4 * square + ffn) + keys
    reads = 2 * square if len(model.stacks) == 2 else 0
    target = model.decoder_layers * (4 * square + reads + ffn) + 2 * model.width * vocab
    return float(BACKWARD * source), float(BACKWARD * target)


def attention_flops(model: Architecture, source: Tensor, target: Tensor) -> float:
    """Operations of attention's two products in training, for sentences of these lengths; a causal one sees half."""
    source, target = source.double(), target.double()
    seen = model.encoder_layers * source.square() + model.decoder_layers * (target * (target + 1) / 2 + source * target)
    return float(BACKWARD * 4 * model.width * seen.sum())


def batch_flops(model: Architecture, vocab: int, source: Tensor, target: Tensor) -> float:
    """Operations that one update needs for sentences of these lengths."""
    by_source, by_target = matrix_flops(model, vocab)
    return by_source * float(source.sum()) + by_target * float(target.sum()) + attention_flops(model, source, target)


def gemm_peak(device: torch.device, dtype: torch.dtype = torch.float32, seconds: float = 0.3) -> float:
    """Operations a second of the product [4096 × 512] · [512 × 1024] here and now; on a CPU, of its processor time."""
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
