"""Forecasts of models, losses and optimisers that the grid does not have: a calm rate trains, a wild one fails."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bathy


class Encoder(nn.Module):
    """torch's layers between two linear maps: a time series in, its next values out."""

    def __init__(self, depth: int, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=norm_first)
        self.first, self.last = nn.Linear(6, 32), nn.Linear(32, 6)
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(32) if norm_first else None, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self.first(x)))


class Residual(nn.Module):
    """A plain residual network without norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 32), nn.Linear(32, 6)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for layer in self.layers:
            h = h + F.relu(layer(h))
        return self.last(h)


class SignDescent(torch.optim.Optimizer):
    """Each entry moves by the rate against the sign of its smoothed gradient (Lion without its decay)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.sub_(mean.mul_(0.9).add_(p.grad, alpha=0.1).sign(), alpha=group["lr"])


def waves(seed: int) -> tuple[Tensor, Tensor]:
    """A batch of sines and the same one step later."""
    generator = torch.Generator().manual_seed(seed)
    phase, speed = (torch.rand(8, 1, 6, generator=generator) for _ in range(2))
    x = torch.sin((0.2 + 0.6 * speed) * torch.arange(25).view(1, -1, 1) + 6.28 * phase)
    return x[:, :-1], x[:, 1:]


@pytest.mark.parametrize(
    ("build", "optimizer", "calm", "wild"),
    [
        (lambda: Encoder(8, norm_first=False), "AdamW", 1e-3, 3e-2),
        (lambda: Encoder(8, norm_first=False), SignDescent, 1e-4, 1e-2),
        (lambda: Encoder(6, norm_first=True), "SGD", 1e-2, 1e3),
        (lambda: Encoder(6, norm_first=True), lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9), 1e-3, 1e3),
        (Residual, "SGD", 1e-3, 1.0),
        (Residual, "Adagrad", 1e-3, 10.0),
    ],
)
def test_a_calm_rate_trains_and_a_wild_one_fails(
    build: Callable[[], nn.Module], optimizer: Any, calm: float, wild: float
) -> None:
    torch.manual_seed(0)
    model, items = build(), [waves(seed) for seed in range(16)]
    settings: dict[str, Any] = {
        "objective": lambda m, item: F.mse_loss(m(item[0]), item[1]), "inputs": lambda item: item[0], "batches": items,
        "optimizer": optimizer, "remedies": [], "look": "rehearsal",
    }  # fmt: skip
    low, high = (bathy.predict(model, items[0][0], lr=lr, **settings).failure for lr in (calm, wild))
    assert low < 0.5 < high
