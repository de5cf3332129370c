from typing import Any, cast

import pytest
import tiny
import torch
from torch import Tensor

from bathy import SCHEMES
from bathy.core.attention import CrossAttention, SelfAttention


def naive(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, heads: int) -> Tensor:
    """softmax(q·kᵀ/√d) v one query, one head at a time."""
    result = torch.zeros_like(q)
    width = q.shape[-1] // heads
    for b in range(q.shape[0]):
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            for i in range(q.shape[1]):
                scores = (k[b, :, part] @ q[b, i, part] / width**0.5).masked_fill(~seen[b, i], -torch.inf)
                result[b, i, part] = scores.softmax(0) @ v[b, :, part]
    return result


NEVER = 1e-6
"""A rate that goes dropout's way and rounds to 0."""


@pytest.mark.parametrize("rate", [0.0, NEVER])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_its_definition(causal: bool, rate: float) -> None:
    attention = SelfAttention(tiny.config(attention_dropout=rate), causal).double()
    x, real = torch.randn(3, 5, 16).double(), tiny.sentences(3, 5).ne(0)
    q, k, v = (x @ attention.qkv.weight[part].T for part in (slice(0, 16), slice(16, 32), slice(32, 48)))
    seen = torch.ones(3, 5, 5, dtype=torch.bool).tril() if causal else real[:, None, :].expand(3, 5, 5)
    expected = naive(q, k, v, seen, 2) @ attention.out.weight.T
    mask = None if causal else real[:, None, None, :]
    torch.testing.assert_close(attention(x, mask), expected)


@pytest.mark.parametrize("rate", [0.0, NEVER])
def test_cross_attention_is_its_definition(rate: float) -> None:
    attention = CrossAttention(tiny.config(attention_dropout=rate)).double()
    x, memory, real = torch.randn(3, 5, 16).double(), torch.randn(3, 4, 16).double(), tiny.sentences(3, 4).ne(0)
    k, v = memory @ attention.kv.weight[:16].T, memory @ attention.kv.weight[16:].T
    expected = naive(x @ attention.q.weight.T, k, v, real[:, None, :].expand(3, 5, 4), 2) @ attention.out.weight.T
    torch.testing.assert_close(attention(x, memory, real[:, None, None, :]), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_trained_in_bfloat16_is_torchs_own(causal: bool) -> None:
    attention = SelfAttention(tiny.config(), causal).bfloat16()
    x, mask = torch.randn(3, 5, 16).bfloat16(), None if causal else tiny.sentences(3, 5).ne(0)[:, None, None, :]
    with torch.no_grad():
        expected = attention(x, mask)
    torch.testing.assert_close(attention(x, mask), expected, rtol=0.02, atol=0.01)


def test_dropout_on_attention_keeps_the_mean() -> None:
    attention = SelfAttention(tiny.config(attention_dropout=0.3), causal=True)
    x = torch.randn(1, 5, 16)
    draws = torch.stack([attention(x) for _ in range(1000)])
    deviation = draws.std(0) / 1000**0.5
    assert draws.std(0).min() > 0
    assert ((draws.mean(0) - attention.eval()(x)).abs() < 5 * deviation).all()


@pytest.mark.parametrize("pieces", [[1] * 7, [3, 1, 3]])
@pytest.mark.parametrize("depths", [(3, 2), (0, 3)])
@pytest.mark.parametrize("name", SCHEMES)
def test_decoding_step_by_step_equals_the_full_forward(name: str, depths: tuple[int, int], pieces: list[int]) -> None:
    model = tiny.shake_(tiny.model(name, depths)).double().eval()
    target = tiny.sentences(4, 7)
    memory: tuple[Any, ...] = model.encode(tiny.sentences()) if depths[0] else ()
    cache, decode = model.cache(), cast(Any, model.decode)
    steps = [decode(piece, *memory, cache=cache) for piece in target.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(steps, 1), model.decode(target, *memory))


def test_selected_rows_of_a_cache_go_on_alone() -> None:
    model = tiny.model().double().eval()
    source, target = tiny.batch(model)
    rows = torch.tensor([2, 0, 0])
    cache = model.cache()
    model.decode(target[:, :3], *model.encode(source), cache=cache)
    cache.select_(rows)
    step = model.decode(target[rows, 3:4], *model.encode(source[rows]), cache=cache)
    torch.testing.assert_close(step, model.decode(target[rows, :4], *model.encode(source[rows]))[:, -1:])
