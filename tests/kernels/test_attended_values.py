"""Both ways to attention agree with a loop over heads."""

import pytest
import torch
from torch import Tensor

from bathy.kernels.attention import attention

NEVER = 1e-6
"""A rate that goes dropout's way and rounds to 0."""


def naive(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    shared = q.shape[1] // k.shape[1]
    heads = [(q[:, h] @ k[:, h // shared].mT * scale).masked_fill(~seen, -torch.inf).softmax(-1) for h in range(q.shape[1])]
    return torch.stack([p @ v[:, h // shared] for h, p in enumerate(heads)], 1)


@pytest.mark.parametrize("rate", [0.0, NEVER])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_its_definition(causal: bool, groups: int, rate: float) -> None:
    q = torch.randn(2, 6, 5, 4, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, groups, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mask = torch.rand(2, 1, 5, 5) < 0.5
    mask |= torch.eye(5, dtype=torch.bool)
    seen = torch.ones(5, 5, dtype=torch.bool).tril() if causal else mask[:, 0]
    ours, expected = attention(q, k, v, None if causal else mask, rate, causal, 0.3), naive(q, k, v, seen, 0.3)
    torch.testing.assert_close(ours, expected)
    for got, wanted in zip(*(torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (ours, expected)), strict=True):
        torch.testing.assert_close(got, wanted)
