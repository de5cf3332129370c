"""Dropout's laws: its rate, its scale, the same mask for the gradient, torch's own random state."""

import pytest
import torch

from bathy.kernels.dropout import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_zeros_come_at_the_rate_and_the_mean_stays(rate: float) -> None:
    y = Dropout(rate)(torch.ones(1000, 400))
    assert (y == 0).float().mean().item() == pytest.approx(rate, abs=0.003)
    assert y.mean().item() == pytest.approx(1, abs=0.005)
    assert y.unique().numel() == 2


def test_the_gradient_passes_where_the_value_does() -> None:
    x = torch.randn(7, 33, requires_grad=True, dtype=torch.float64)
    y = Dropout(0.4)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y / x).detach())


def test_neighbours_are_independent() -> None:
    kept = (Dropout(0.3)(torch.ones(400_000)) != 0).float() - 0.7
    for lag in (1, 2, 3, 4):
        assert (kept[lag:] * kept[:-lag]).mean().abs().item() < 0.002


def test_the_seed_decides_and_evaluation_leaves_alone() -> None:
    x, dropout = torch.randn(5, 3), Dropout(0.5)
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        outputs.append(dropout(x))
    assert torch.equal(*outputs)
    assert dropout.eval()(x) is x


def test_a_transposed_tensor_is_dropped_as_any_other() -> None:
    x = torch.randn(6, 4).T.requires_grad_()
    y = Dropout(0.5)(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0] * x, y)


def test_nothing_to_drop_and_nothing_to_keep() -> None:
    assert Dropout(0.5)(torch.ones(0, 3)).shape == (0, 3)
    assert Dropout(1.0)(torch.ones(5)).eq(0).all() and Dropout(0.999999)(torch.ones(5)).shape == (5,)
