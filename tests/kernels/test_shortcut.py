import pytest
import torch

from bathy.kernels.shortcut import weighted


@pytest.mark.parametrize("shape", [(), (4,)])
def test_the_weighted_shortcuts_gradients_are_the_formulas(shape: tuple[int, ...]) -> None:
    a, x, omega = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((2, 3, 4), (2, 3, 4), shape))
    torch.testing.assert_close(weighted(a, x, omega), a + omega * x)
    assert torch.autograd.gradcheck(weighted, (a, x, omega))
