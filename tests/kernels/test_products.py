"""Products by oneDNN are those of F.linear, with their gradients."""

import pytest
import torch
import torch.nn.functional as F

from bathy.kernels.library import library, products_by
from bathy.kernels.packed import can_pack
from bathy.kernels.products import Linear, linear
from bathy.train.flops import gemm_peak

needs_onednn = pytest.mark.skipif(not can_pack(torch.float32), reason="torch has no oneDNN here")


@needs_onednn
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(24, 40), (300, 40)])
def test_a_linear_layer_and_its_gradients_are_torchs(
    inputs: int, outputs: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bathy.kernels.products.SMALL", 0)
    layer, x = Linear(inputs, outputs, bias=biased), torch.randn(3, 7, inputs, requires_grad=True)
    values, grad = [x, *layer.parameters()], torch.randn(3, 7, outputs)
    expected = F.linear(x, layer.weight, layer.bias)
    with products_by("onednn"):
        assert library() == "onednn"
        found = layer(x)
        ours = torch.autograd.grad(found, values, grad)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, values, grad), rtol=1e-4, atol=1e-4)


@needs_onednn
def test_projections_are_the_same_by_either_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bathy.kernels.products.SMALL", 0)
    x, weight = (torch.randn(shape, requires_grad=True) for shape in ((2, 5, 6), (18, 6)))
    found = []
    for name in ("mkl", "onednn"):
        with products_by(name):
            parts = linear(x, weight, None).split((10, 4, 4), dim=-1)
            found.append((*parts, *torch.autograd.grad([part.sum() for part in parts], [x, weight])))
    torch.testing.assert_close(found[0], found[1])


def test_torchs_own_products_are_untouched_where_it_is_told_so() -> None:
    layer, x = Linear(24, 40), torch.randn(7, 24)
    with products_by("mkl"):
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def test_the_peak_is_that_of_the_fastest_library() -> None:
    peak = gemm_peak(torch.device("cpu"), seconds=0.05)
    assert peak.speed > 1e8 and peak.by in ("torch.mm", "onednn")
