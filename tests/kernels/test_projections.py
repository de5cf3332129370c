import pytest
import torch
import torch.nn.functional as F

from bathy.kernels.projections import projections


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("sizes", [(6, 6, 6), (10, 4, 4)])
def test_projections_and_their_gradients_are_those_of_the_linear_layer(sizes: tuple[int, ...], biased: bool) -> None:
    shapes = [(2, 5, 6), (18, 6), (18,)][: 2 + biased]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    x, weight, bias = inputs[0], inputs[1], inputs[2] if biased else None
    values, wanted = projections(x, weight, bias, sizes), torch.randn(2, 5, 18).double()
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(torch.cat(values, -1), expected)
    with torch.no_grad():
        torch.testing.assert_close(projections(x, weight, bias, sizes), values)
    ours = torch.autograd.grad(values, inputs, wanted.split(sizes, -1))
    torch.testing.assert_close(ours, torch.autograd.grad(expected, inputs, wanted))
