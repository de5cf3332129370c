"""The monitor with two processes: DDP and FSDP2 train bit by bit the same, and the first process has the readings."""

import os
import tempfile
from pathlib import Path

import pytest
import tiny
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

import bathy
from bathy.clinic.losses import default_loss


def losses(way: str, rank: int, monitored: bool) -> tuple[list[float], bathy.Monitor]:
    model = tiny.model("admin", dropout=0.1)
    wrapped: nn.Module = model
    if way == "ddp":
        wrapped = DistributedDataParallel(model)
    else:
        for layer in [*model.encoder.layers, *model.decoder.layers]:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.Adam(wrapped.parameters(), 1e-2)
    monitor = bathy.Monitor(wrapped, optimizer=optimizer, every=2)
    torch.manual_seed(rank)
    found = []
    with monitor if monitored else torch.enable_grad():
        for _ in range(4):
            batch = (torch.randint(4, 50, (4, 7)), torch.randint(4, 50, (4, 5)))
            loss = default_loss(wrapped(*batch), batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
            if monitored:
                monitor.step(loss)
    return found, monitor


def work(rank: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for way in ("ddp", "fsdp"):
        plain, _ = losses(way, rank, False)
        watched, monitor = losses(way, rank, True)
        assert plain == watched
        assert bool(monitor.readings) == (rank == 0)
        if rank == 0:
            assert {row.step for row in monitor.readings} == {1, 2, 4}
            sizes = [row.value for row in monitor.readings if row.quantity == "weight_update"]
            assert sizes and all(size > 0 for size in sizes)
            (Path(folder) / way).write_text(str(len(sizes)))
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_the_same_and_the_first_listens() -> None:
    with tempfile.TemporaryDirectory() as folder:
        start_processes(work, (folder,), nprocs=2, start_method="spawn")
        counts = {way: int((Path(folder) / way).read_text()) for way in ("ddp", "fsdp")}
    assert counts["ddp"] > counts["fsdp"] > counts["ddp"] / 2  # a process holds only part of a fused q, k, v
