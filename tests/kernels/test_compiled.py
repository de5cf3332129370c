"""Compiled kernels give torch's numbers, whatever the number of threads, and are done without where they cannot be built."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bathy.kernels import build, compiled
from bathy.kernels.compiled import Dropped
from bathy.kernels.cross_entropy import cross_entropy
from bathy.kernels.library import described, library, products_by, usable

needs_compiler = pytest.mark.skipif(not compiled.available(), reason=f"no compiled kernels here: {compiled.missing()}")
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture
def normal() -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(3)
    return lambda *shape: torch.randn(shape, generator=generator)


def dropped_for(count: int, rate: float = 0.25) -> tuple[Dropped, Tensor]:
    """What is dropped of so many numbers, and the same as factors."""
    draws = compiled.draw(9, count // 4 + 5)
    level = round(rate * 65536) - 32768
    kept = (draws.view(torch.int16)[:count] >= level).float() / (1 - rate)
    return Dropped(draws, level, 1 / (1 - rate)), kept


def masks(kind: str, items: int, queries: int, keys: int) -> Tensor | None:
    shapes = {"none": None, "keys": (items, 1, 1, keys), "pairs": (items, 1, queries, keys), "shared": (queries, keys)}
    shape = shapes[kind]
    if shape is None:
        return None
    bias = torch.zeros(shape)
    bias[..., keys // 2 + 1 :: 3] = -torch.inf
    return bias


@needs_compiler
@pytest.mark.parametrize("kind", ["none", "keys", "pairs", "shared", "causal"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (6, 5), (7, 22), (128, 128), (22, 22)])
@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_attention_and_its_gradients(kind: str, queries: int, keys: int, rate: float, normal: Callable[..., Tensor]) -> None:
    causal, width = kind == "causal" and queries == keys, 2 * compiled.lanes()
    q, k, v = (normal(3, length, 2, width).transpose(1, 2).requires_grad_() for length in (queries, keys, keys))
    bias = None if causal else masks("none" if kind == "causal" else kind, 3, queries, keys)
    dropped, kept = dropped_for(3 * 2 * queries * keys) if rate else (None, torch.ones(3 * 2 * queries * keys))
    o, p = compiled.attend((q, k, v), bias, causal, dropped, 0.2)
    scores = 0.2 * q @ k.mT + (0 if bias is None else bias)
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys).triu(1).bool(), -torch.inf)
    expected = ((scores.softmax(-1) * kept.view(3, 2, queries, keys)) @ v).transpose(1, 2).reshape(3 * queries, -1)
    torch.testing.assert_close(o, expected, **CLOSE)
    grad, into = normal(*expected.shape), [torch.empty_like(part) for part in (q, k, v)]
    compiled.attend_back(grad, o, [q, k, v], p, dropped, 0.2, into)
    torch.testing.assert_close(into, list(torch.autograd.grad(expected, (q, k, v), grad)), **CLOSE)


@needs_compiler
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 33), (700, 64)])
def test_a_norm_and_its_gradients(rows: int, width: int, shifted: bool, normal: Callable[..., Tensor]) -> None:
    x, gamma, grad = normal(rows, width).requires_grad_(), normal(width).requires_grad_(), normal(rows, width)
    nu = normal(width).requires_grad_() if shifted else None
    out, mean, deviation = compiled.norm(x, gamma, nu, 1e-2)
    expected = F.layer_norm(x.double(), (width,), gamma.double(), None if nu is None else nu.double(), 1e-2)
    torch.testing.assert_close(out, expected.float(), **CLOSE)
    stream = normal(rows, width)
    *found, d_omega = compiled.norm_back(grad, x, mean, deviation, gamma, nu, stream)
    assert d_omega is not None and torch.equal(d_omega, compiled.sum_rows(found[0], stream))  # type: ignore[arg-type]
    wanted = torch.autograd.grad(expected.float(), [x, gamma, *([] if nu is None else [nu])], grad)
    torch.testing.assert_close([part for part in found if part is not None], list(wanted), rtol=1e-3, atol=1e-3)


@needs_compiler
@pytest.mark.parametrize("rows", [1, 5, 6, 97, 300])
@pytest.mark.parametrize(("outs", "ins"), [(1, 1), (3, 4), (12, 4), (4, 33)])
def test_products_and_their_gradients(rows: int, outs: int, ins: int, normal: Callable[..., Tensor]) -> None:
    outs, ins = outs * compiled.lanes(), ins * compiled.lanes()
    x, weight, bias, grad = normal(rows, ins), normal(outs, ins), normal(outs), normal(rows, outs)
    cases = [
        (compiled.product(x, weight, bias), x.double() @ weight.double().T + bias),
        (compiled.product(x, weight, None), x.double() @ weight.double().T),
        (compiled.product_back(grad, weight), grad.double() @ weight.double()),
        (compiled.weight_back(grad, x), grad.double().T @ x.double()),
        (compiled.sum_rows(grad), grad.double().sum(0)),
        (compiled.sum_rows(grad, 2 * grad), (2 * grad.double().square()).sum(0)),
    ]
    for found, expected in cases:
        torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-3)


@needs_compiler
def test_what_is_done_to_each_number(normal: Callable[..., Tensor]) -> None:
    x, y, omega = normal(11, 19), normal(11, 19), normal(19)
    dropped, kept = dropped_for(11 * 19)
    kept = kept.view(11, 19)
    cases = [
        (compiled.mask(x, dropped), x * kept),
        (compiled.join(x, y, dropped, omega), omega * x + y * kept),
        (compiled.join(x, y, None, 0.5), 0.5 * x + y),
        (compiled.join(x, y, dropped, 1.0), x + y * kept),
        (compiled.relu_mask_(x.clone(), dropped), x.relu() * kept),
        (compiled.relu_mask_(x.clone(), None), x.relu()),
        (compiled.relu_mask_back_(y.clone(), x, 1.5), torch.where(x > 0, 1.5 * y, 0)),
    ]
    for found, expected in cases:
        torch.testing.assert_close(found, expected)


@needs_compiler
def test_what_is_not_a_number_is_not_lost(normal: Callable[..., Tensor]) -> None:
    x, (dropped, _) = torch.full((4, 2 * compiled.lanes()), torch.nan), dropped_for(8 * compiled.lanes())
    heads = x.view(1, 1, 4, -1)
    results = [
        compiled.mask(x, dropped), compiled.relu_mask_(x.clone(), dropped), compiled.relu_mask_(x.clone(), None),
        compiled.relu_mask_back_(x.clone(), x, 2.0), compiled.join(x, normal(*x.shape), dropped, 1.0),
        compiled.join(normal(*x.shape), x, dropped, 1.0), compiled.norm(x, x[0], None, 1e-5)[0],
        compiled.attend((heads, normal(*heads.shape), normal(*heads.shape)), None, False, None, 1.0)[0],
        compiled.attend((normal(*heads.shape), normal(*heads.shape), heads), None, True, None, 1.0)[0],
    ]  # fmt: skip
    assert all(result.isnan().all() for result in results)


@needs_compiler
@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**63 - 1])
def test_draws_are_numpys(seed: int) -> None:
    assert (compiled.draw(seed, 501).numpy().view(np.uint64) == np.random.SFC64(seed).random_raw(501)).all()


@needs_compiler
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_torchs_operations(smoothing: float, normal: Callable[..., Tensor]) -> None:
    target = torch.randint(0, 70, (23,), generator=torch.Generator().manual_seed(1))
    x, weight = (20 * normal(23, 8)).requires_grad_(), normal(70, 8).requires_grad_()
    found = []
    for name in ("mkl", "mkl+compiled"):
        with products_by(name):
            loss, nll = cross_entropy(x, weight, target, smoothing, rows=10)
            found.append((loss, nll, *torch.autograd.grad(loss, (x, weight))))
    torch.testing.assert_close(found[0], found[1], **CLOSE)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@needs_compiler
def test_the_number_of_threads_changes_no_digit(threads: None, normal: Callable[..., Tensor]) -> None:
    q, k, v = (normal(5, 4, 30, 2 * compiled.lanes()) for _ in range(3))
    x, weight, gamma = normal(900, 64), normal(128, 64), normal(64)
    found: list[list[Any]] = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        out, mean, deviation = compiled.norm(x, gamma, gamma, 1e-5)
        found.append(
            [*compiled.attend((q, k, v), None, True, None, 0.3), compiled.product(x, weight, None), compiled.weight_back(x, x),
             *compiled.norm_back(x, out, mean, deviation, gamma, gamma), compiled.sum_rows(x, out)]
        )  # fmt: skip
    torch.testing.assert_close(found[1:], [found[0]] * 2, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("BATHY_COMPILED", "0", "switched off"),
        ("CC", "/nowhere/cc", "/nowhere/cc did not give a usable library"),
        ("CC", "false", "false did not give a usable library"),
    ],
)
def test_without_a_compiler_it_says_why(
    setting: str, value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(setting, value)
    found = build.load()
    assert isinstance(found, str) and said in found
    assert not list(tmp_path.rglob("*.so"))


@needs_compiler
def test_a_damaged_library_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not isinstance(build.load(), str)
    (kept,) = tmp_path.rglob("*.so")
    kept.unlink()
    kept.write_bytes(b"damaged")
    assert not isinstance(build.load(), str)


def test_a_run_says_who_computed_it() -> None:
    assert usable("mkl") and usable(library())
    assert described("onednn+compiled") == "oneDNN, the rest by compiled kernels"
