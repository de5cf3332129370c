"""What a CPU would waste in training: memory that is given back and asked for again, and numbers too small to matter."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Names of glibc's mallopt settings."""


def hold_memory() -> bool:
    """Take large blocks from the heap and leave freed ones there; true where glibc agreed.

    Activations are allocated and freed by the gigabyte each update. As glibc comes, a good part of them is mapped anew every
    time, and the kernel clears each page: up to a fifth of a CPU step, and a twentieth of translating batches. Peak memory does
    not grow by it.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, 2**31 - 1))


@contextmanager
def flushed() -> Iterator[None]:
    """Where results below 1e-38 are zero, in this thread and in those it starts.

    A CPU takes such numbers apart in microcode. Post-LN's gradients over a thousand layers vanish into them; an update then
    takes many times as long, and no step of an optimiser is large enough to show them.
    """
    before = (torch.tensor(1e-30) * 1e-10).item() == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def needs_memory(error: Exception) -> bool:
    """Whether an error says that memory ran out: Python's, torch's on a GPU, or the message of its CPU allocator."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
