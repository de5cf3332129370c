"""Train the task and the model of examples/own_task.py with other settings: in this process, or as a script under torchrun.

python own_task_run.py RUN '{"train": {"steps": 8}}' [exact] [count-syncs]
"""

import json
import sys
from functools import partialmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bathy.train import Config, OptimConfig, Shuffled, TrainConfig, fit
from bathy.train.state import State
from bathy.train.world import World

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from own_task import CountBright, VisionTransformer, bright

BASE: dict[str, dict[str, Any]] = {
    "optim": {"name": "adamw", "lr": 1e-3, "warmup": 4, "schedule": "constant"},
    "train": {"steps": 12, "accumulate": 2, "log_every": 1, "save_every": 6, "valid_every": 6},
}


__all__ = ["CountBright", "Exact", "config", "train"]


class Exact(CountBright):
    """In float64, one layer, without dropout, so that ranks draw nothing of their own."""

    def build(self) -> nn.Module:
        model = VisionTransformer(layers=1)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            elif isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        return model

    def batches(self, rank: int, size: int) -> Shuffled:
        images, counts = bright(512, seed=1)
        return Shuffled((images.double(), counts), rows=16, seed=1, rank=rank, size=size)

    def held_out(self, rank: int, size: int) -> list[tuple[Tensor, Tensor]]:
        return [(images.double(), counts) for images, counts in super().held_out(rank, size)]


def config(**changes: dict[str, Any]) -> Config:
    settings = {part: BASE[part] | changes.get(part, {}) for part in BASE}
    return Config(optim=OptimConfig(**settings["optim"]), train=TrainConfig(**settings["train"]))


def train(run: Path, exact: bool = False, **changes: dict[str, Any]) -> State:
    return fit(Exact() if exact else CountBright(), config(**changes), run)


def count_syncs(run: Path) -> None:
    """Write how often this process's DDP has shared gradients into RUN.syncs and its rank."""
    wrap, count = World.wrap, [0]

    def hook(path: Path, bucket: torch.distributed.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        count[0] += 1
        path.write_text(str(count[0]))
        future = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / torch.distributed.get_world_size())

    def counted(self: World, *args: Any) -> Any:
        engine: Any = wrap(self, *args)
        engine.register_comm_hook(run.with_suffix(f".syncs{self.rank}"), hook)
        return engine

    setattr(World, "wrap", counted)  # noqa: B010


if __name__ == "__main__":
    torch.set_num_threads(1)
    run, changes, *options = sys.argv[1:]
    if "count-syncs" in options:
        count_syncs(Path(run))
        setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))  # noqa: B010
    state = train(Path(run), "exact" in options, **json.loads(changes))
    assert state.engine is state.objective  # nothing of DDP is left to close the process group
