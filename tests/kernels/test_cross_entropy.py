"""The chunked loss equals torch's, with its gradients."""

import pytest
import torch
import torch.nn.functional as F

from bathy.kernels.cross_entropy import cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [3, 5, 64])
def test_loss_and_gradients_are_torchs(smoothing: float, rows: int) -> None:
    x, weight = torch.randn(13, 8, dtype=torch.float64), torch.randn(21, 8, dtype=torch.float64)
    x, weight, target = x.requires_grad_(), weight.requires_grad_(), torch.randint(0, 21, (13,))
    loss, nll = cross_entropy(x, weight, target, smoothing, rows)
    expected = F.cross_entropy(F.linear(x, weight), target, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, F.cross_entropy(F.linear(x, weight), target, reduction="sum").detach())
    torch.testing.assert_close(torch.autograd.grad(3 * loss, [x, weight]), torch.autograd.grad(3 * expected, [x, weight]))


@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_bias_and_a_cap_are_torchs(smoothing: float, cap: float) -> None:
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((13, 8), (21, 8), (21,))]
    x, weight, bias = inputs
    target = torch.randint(0, 21, (13,))
    loss, nll = cross_entropy(x, weight, target, smoothing, 5, bias, cap)
    logits = F.linear(x, weight, bias)
    logits = cap * torch.tanh(logits / cap) if cap else logits
    expected = F.cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, F.cross_entropy(logits, target, reduction="sum").detach())
    torch.testing.assert_close(torch.autograd.grad(3 * loss, inputs), torch.autograd.grad(3 * expected, inputs))


def test_logits_of_any_size_give_a_finite_loss() -> None:
    x = torch.full((2, 4), 100.0)
    weight = torch.tensor([[-50.0] * 4, [50.0] * 4, [0.0] * 4])
    loss, _ = cross_entropy(x, weight, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(40000)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_comes_near_and_gives_gradients_in_the_weights_type(kind: torch.dtype) -> None:
    x, weight = torch.randn(40, 16, requires_grad=True), torch.randn(30, 16, requires_grad=True)
    target = torch.randint(0, 30, (40,))
    exact, _ = cross_entropy(x, weight, target, 0.1, rows=16)
    with torch.autocast("cpu", dtype=kind):
        near, _ = cross_entropy(x, weight, target, 0.1, rows=16)
    torch.testing.assert_close(near, exact, rtol=0.02, atol=0)
    for got, wanted in zip(torch.autograd.grad(near, [x, weight]), torch.autograd.grad(exact, [x, weight]), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, wanted, rtol=0.1, atol=0.2)
