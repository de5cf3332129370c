"""Who takes part in a run: rank, size and device, as torchrun says; one process is a world of its own.

torchrun --nproc-per-node 8 -m bathy train CONFIG
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store, default_pg_timeout
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from bathy.errors import ConfigError, TrainingError

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

    def union(self, names: Iterable[str]) -> list[str]:
        """The names that any rank has, in one order for all."""
        everyone: list[list[str] | None] = [list(names)]
        if self.size > 1:
            everyone = [None] * self.size
            dist.all_gather_object(everyone, list(names))
        return list(dict.fromkeys(name for part in everyone for name in part or []))

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Give every rank the first one's values."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)  # a parameter itself would make autograd warn

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            dist.barrier()

    def seed(self, *numbers: int) -> None:
        """Make all that is random from here on follow from these numbers and the rank."""
        seed = int(np.random.SeedSequence([*numbers, self.rank]).generate_state(1, np.uint64)[0])
        if self.device.type == "cpu":  # torch.manual_seed would also note, with a whole traceback, what GPUs get if they appear
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def wrap(self, module: nn.Module, parallel: str, parts: Sequence[nn.Module]) -> nn.Module:
        """The module as this world trains it: alone, as DDP's copies, or cut by FSDP2, each of `parts` and then the rest."""
        if self.size == 1:
            return module
        if parallel == "ddp":
            devices = [self.device] if self.device.type == "cuda" else None
            return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.size,))
        for part in [*parts, module]:
            fully_shard(part, mesh=mesh)
        return module


def accumulating(module: Callable[..., object], last: bool) -> AbstractContextManager[None]:
    """A block for one of an update's batches, forward and backward: ranks share gradients after the last one only."""
    if set_sync := getattr(module, "set_requires_gradient_sync", None):  # FSDP2's
        set_sync(last)
    # Forward belongs inside too: DDP decides there whether this pass will synchronise.
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()


@contextmanager
def joined() -> Iterator[World]:
    """The world that torchrun's environment describes; its process group is left at the end."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    cuda = torch.cuda.is_available()
    if cuda and local >= torch.cuda.device_count():
        raise ConfigError(f"process {local} of this machine has no GPU; start at most {torch.cuda.device_count()} here")
    device = torch.device("cuda", local) if cuda else CPU
    if cuda:
        torch.cuda.set_device(device)
    if "RANK" not in os.environ:
        yield World(device=device)
        return
    store, rank, size = next(rendezvous("env://"))
    store = PrefixStore(_attempt(store, rank, size), store)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, device_id=device if cuda else None)
    try:
        yield World(rank, size, device)
    finally:
        # gloo's threads drop the tensors of the last collective under the interpreter's lock. After an error DDP may still hold
        # the group and close it under that lock (see fit): a moment in which the threads can finish keeps the rank alive.
        time.sleep(0.1)
        dist.destroy_process_group()


def _attempt(store: Store, rank: int, size: int) -> str:
    """A fresh name on which the ranks that start now agree; what they store under it no earlier attempt has written.

    After a lost rank torchrun starts all anew with the same store, and a rank that reads the address of a dead one there
    waits for it for ever. So each rank asks under a name of its own, and the first answers until all have its answer.
    """
    own = uuid4().hex
    if rank:
        store.set(f"asks/{rank}", own)
        name = store.get(f"answer/{own}").decode()
        store.set(f"{name}/has/{rank}", own)
        return name
    end = time.monotonic() + default_pg_timeout.total_seconds()
    while not all(store.check([f"{own}/has/{other}"]) for other in range(1, size)):
        for other in range(1, size):
            if store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", own)
        if time.monotonic() > end:
            raise TrainingError(
                f"the {size} processes of this run did not find each other in {default_pg_timeout}; start it again"
            )
        time.sleep(0.02)
    return own
