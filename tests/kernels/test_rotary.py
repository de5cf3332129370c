"""Rotation written by hand is multiplication by a complex number of size 1."""

import pytest
import torch

from bathy.core.positions import Rotary
from bathy.kernels.rotary import rotate


@pytest.mark.parametrize("own", [True, False])
def test_pairs_are_turned_as_complex_numbers(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bathy.kernels.rotary.own_rotation", lambda x: own)
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    cos, sin = Rotary(9, 8, 100.0).double()(slice(2, 7))
    angles = torch.arange(2, 7)[:, None] * 100.0 ** (-torch.arange(4) / 4)
    turned = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones(()).double(), angles.double())
    torch.testing.assert_close(rotate(x, cos, sin), torch.cat([turned.real, turned.imag], -1), rtol=0, atol=1e-6)


def test_the_gradient_is_the_formulas() -> None:
    x = torch.randn(2, 1, 3, 4, dtype=torch.float64, requires_grad=True)
    cos, sin = torch.rand(3, 2).double(), torch.rand(3, 2).double()
    assert torch.autograd.gradcheck(lambda value: rotate(value, cos, sin), x)
