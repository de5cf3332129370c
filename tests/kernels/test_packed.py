"""Packed products are `F.linear`."""

import pytest
import torch
import torch.nn.functional as F

from bathy.kernels import packed
from bathy.kernels.packed import PackedLinear


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 4, 250])
def test_a_packed_product_is_the_plain_one(rows: int, dtype: torch.dtype) -> None:
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((rows, 256), (1024, 256), (1024,)))
    for offset in (bias, None):
        found, expected = PackedLinear(weight, offset)(x), F.linear(x, weight, offset)
        assert found.dtype == dtype and found.shape == expected.shape
        assert float((found - expected).abs().max() / expected.abs().max()) <= packed.TOLERANCE.get(dtype, 0.0)


def test_what_oned_nn_gives_wrong_or_not_at_all_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators are private: one that is gone or has changed its meaning must not be used."""
    x, weight = torch.randn(3, 256), torch.randn(1024, 256)
    wrong = lambda x, packed, bias, *_: F.linear(x, packed, bias) + 1  # noqa: E731
    namespaces = {
        "wrong": type(
            "ops", (), {"_reorder_linear_weight": lambda w, _: w, "_linear_pointwise": type("o", (), {"default": wrong})}
        ),
        "gone": type("ops", (), {}),
    }
    for namespace in namespaces.values():
        packed.can_pack.cache_clear()
        monkeypatch.setattr(torch.ops, "mkldnn", namespace)
        torch.testing.assert_close(PackedLinear(weight, None)(x), F.linear(x, weight))
    monkeypatch.undo()
    packed.can_pack.cache_clear()
