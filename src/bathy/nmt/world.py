"""Who takes part in a run: rank, size and device, as torchrun says; one process is a world of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """One process among `size`."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def sum(self, *values: float) -> list[float]:
        """Each value summed over all ranks, in float64."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.size > 1:
            dist.all_reduce(total)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank: all ranks then know it at the same update."""
        return self.sum(float(flag))[0] > 0

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined() -> Iterator[World]:
    """The world that torchrun's environment describes; its process group is left at the end."""
    size, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if size == 1:
        yield World(device=device)
        return
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()
