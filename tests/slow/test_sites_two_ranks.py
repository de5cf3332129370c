"""ω hooked into a stock encoder trains on two processes as on one and is saved: FSDP2, DDP, and compiled."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.multiprocessing.spawn import start_processes

import bathy


def build() -> nn.Module:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 3)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    bathy.stabilise_(model, rows())
    return model


def rows() -> Tensor:
    return torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(5))


def train(model: nn.Module, x: Tensor) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(5):
        loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def wrapped(model: Any, how: str) -> nn.Module:
    """The model as two processes train it."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    if how == "sharded":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        assert model.layers[1].norm1.bathy_omega_3.to_local().numel() == 8
        return model
    if how == "compiled":
        model = torch.compile(model, backend="aot_eager")
    return DistributedDataParallel(model)


def rank(number: int, folder: str, how: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    model = wrapped(build(), how)
    losses = torch.tensor(train(model, rows()[2 * number : 2 * number + 2]))
    torch.distributed.all_reduce(losses)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if number == 0:
        torch.save((losses / 2, whole), Path(folder, "trained.pt"))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sharded", "replicated", "compiled"])
def test_two_processes_train_as_one_model(how: str, tmp_path: Path) -> None:
    start_processes(rank, (str(tmp_path), how), nprocs=2, start_method="spawn")
    losses, state = torch.load(tmp_path / "trained.pt", weights_only=True)
    one, loaded = build(), build()
    torch.testing.assert_close(losses, torch.tensor(train(one, rows())), rtol=1e-4, atol=0)
    loaded.load_state_dict(state)
    omegas = [dict(model.named_parameters())["layers.1.norm1.bathy_omega_3"] for model in (loaded, one, build())]
    torch.testing.assert_close(omegas[0], omegas[1], rtol=0.01, atol=0)  # Adam makes much of small differences
    assert not torch.allclose(omegas[0], omegas[2], rtol=0.02)
    torch.testing.assert_close(bathy.fold(loaded).eval()(rows()), loaded.eval()(rows()), rtol=1e-4, atol=1e-4)
