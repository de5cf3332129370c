from typing import Any, cast

import pytest
import torch

from bathy.core.norms import NORMS, LayerNorm, RMSNorm, ScaleNorm, find_norm
from bathy.errors import ConfigError, SchemeError

x = torch.randn(3, 5, 16, dtype=torch.float64) * 2 + 1


def test_layer_norm_is_its_formula() -> None:
    norm = LayerNorm(16).double()
    mean, var = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    torch.testing.assert_close(norm(x), (x - mean) / (var + 1e-5).sqrt())


@pytest.mark.parametrize("kind", [RMSNorm, ScaleNorm])
def test_rms_and_scale_norm_are_their_formula(kind: type) -> None:
    norm = kind(16).double()
    norm.weight.data.fill_(1.7)
    torch.testing.assert_close(norm(x), 1.7 * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())


@pytest.mark.parametrize("name", NORMS)
def test_scaling_a_norm_scales_what_it_gives(name: str) -> None:
    norm = NORMS[name](16).double()
    for parameter in norm.parameters():
        parameter.data.add_(0.5)
    expected = norm(x) * 3
    cast(Any, norm).scale_(3.0)
    torch.testing.assert_close(norm(x), expected)


def test_scale_norm_refuses_a_vector() -> None:
    with pytest.raises(SchemeError, match="vector ω"):
        ScaleNorm(16).scale_(torch.rand(16))


def test_an_unknown_norm_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean layer"):
        find_norm("layr")
