"""Train a model and a task of your own on bathy's engine: a small vision Transformer that counts an image's bright patches.

    python examples/own_task.py                                              # stop it, run it again: it resumes
    torchrun --nproc-per-node 2 examples/own_task.py                         # two ranks share the work

What the engine gives: exact resume, DDP and FSDP2, precision, the clinic's monitor, divergence detection, a live view.
"""

import math
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bathy.train import Config, OptimConfig, Shuffled, Task, TrainConfig, fit

PATCHES, PIXELS, WIDTH = 16, 9, 32


class VisionTransformer(nn.Module):
    """Patches to classes: Post-LN, as `nn.TransformerEncoderLayer` comes."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.embed, self.positions = nn.Linear(PIXELS, WIDTH), nn.Parameter(torch.randn(PATCHES, WIDTH) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.1, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, PATCHES + 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def bright(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images in patches, and how many of their patches are brighter than others."""
    generator = torch.Generator().manual_seed(seed)
    lit = torch.rand(count, PATCHES, generator=generator) < torch.rand(count, 1, generator=generator)
    noise = torch.randn(count, PATCHES, PIXELS, generator=generator)
    return noise + lit[..., None], lit.sum(1)


class CountBright(Task):
    """Classification by cross-entropy."""

    def build(self) -> nn.Module:
        return VisionTransformer()

    def batches(self, rank: int, size: int) -> Shuffled:
        return Shuffled(bright(4000, seed=1), rows=32, seed=1, rank=rank, size=size)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        images, counts = batch
        nll = F.cross_entropy(model(images), counts, reduction="sum")
        return nll, nll.detach()

    def inputs(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return batch[0]

    def held_out(self, rank: int, size: int) -> list[tuple[Tensor, Tensor]]:
        images, counts = bright(512, seed=2)
        return [(images[rank::size], counts[rank::size])]

    def chance(self) -> float:
        return math.log(PATCHES + 1)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    config = Config(
        optim=OptimConfig(name="adamw", lr=1e-3, warmup=50, schedule="constant"),
        train=TrainConfig(steps=steps, valid_every=100, save_every=100, log_every=20, monitor=True),
    )
    state = fit(CountBright(), config, "runs/own_task")
    print(f"validation loss {state.valid:.2f} after {state.step} updates; guessing gives {math.log(PATCHES + 1):.2f}")
