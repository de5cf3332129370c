"""dropout(relu(x)) in one pass is what the two give one after the other."""

import pytest
import torch
from torch import nn

from bathy.kernels.activation import activated
from bathy.kernels.dropout import Dropout


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU()])
@pytest.mark.parametrize("shape", [(7, 33), (3, 5, 60_000)])
def test_values_and_gradients_are_those_of_the_two_modules(shape: tuple[int, ...], activation: nn.Module) -> None:
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    torch.manual_seed(3)
    ours = activated(activation, x, 0.3)
    torch.manual_seed(3)
    expected = Dropout(0.3)(activation(x))
    assert torch.equal(ours, expected)
    assert torch.equal(*(torch.autograd.grad(y, x, grad)[0] for y in (ours, expected)))
    assert torch.equal(activated(activation, x, 0.0), activation(x))
