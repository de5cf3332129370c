"""Tracing finds the residual sites of any model from one forward pass."""

from collections.abc import Callable
from typing import Any

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bathy import SCHEMES, find_sites
from bathy.errors import ModelError
from bathy.sites import Site, declared_sites

WIDTH = 8
Sum = Callable[[Tensor, Tensor], Tensor]


def described(site: Site) -> tuple[Any, ...]:
    roles = [(m.role, m.module, m.name, m.rows, m.reads) for m in site.matrices]
    return site.name, site.stack, site.kind, site.layer, site.index, site.placement, site.post, site.width, roles


@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
@pytest.mark.parametrize("scheme", SCHEMES)
def test_tracing_our_own_model_finds_exactly_the_sites_it_declares(scheme: str, depths: tuple[int, int]) -> None:
    model = tiny.model(scheme, depths)
    found = find_sites(model, tiny.batch(model))
    assert [described(site) for site in found] == [described(site) for site in declared_sites(model)]


class Block(nn.Module):
    """norm(x + f(x)) in any style of addition; the branch comes in a tuple."""

    def __init__(self, add: Sum) -> None:
        super().__init__()
        self.up, self.down, self.norm, self.add = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH), nn.LayerNorm(WIDTH), add

    def branch(self, x: Tensor) -> tuple[Tensor, str]:
        return self.down(F.gelu(self.up(x), approximate="tanh")), "more"

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.add(x, self.branch(x)[0]))


def in_place(x: Tensor, a: Tensor) -> Tensor:
    a += x
    return a


SUMS: dict[str, Sum] = {
    "x + a": lambda x, a: x + a,
    "a + x": lambda x, a: a + x,
    "a += x": in_place,
    "torch.add": torch.add,
    "x.add": lambda x, a: x.add(a),
    "dropout": lambda x, a: x + F.dropout(a, 0.5),
    "cast": lambda x, a: x + a.double().float(),
}


def stack(depth: int = 3, add: Sum = torch.add) -> nn.Sequential:
    return nn.Sequential(*(Block(add) for _ in range(depth)))


@pytest.mark.parametrize("style", SUMS)
def test_every_style_of_addition_is_seen(style: str) -> None:
    found = find_sites(stack(add=SUMS[style]), torch.randn(2, 5, WIDTH))
    assert [(site.name, site.kind, site.placement, site.index) for site in found] == [
        (str(i), "ffn", "post", i + 1) for i in range(3)
    ]
    assert [[m.role for m in site.matrices] for site in found] == [["fc1", "fc2"]] * 3


@pytest.mark.parametrize("style", SUMS)
def test_the_moments_of_a_site_are_those_of_its_equation(style: str) -> None:
    """x, a, b and LN(b), against a block written out; b = x + a holds also where the addition overwrote its operand."""
    model: Any = stack(1, SUMS[style])
    x0 = torch.randn(2, 5, WIDTH)
    (site,) = find_sites(model, x0)
    seen: dict[str, Tensor] = {}
    handles = [site.on(m, lambda t, m=m: seen.update({m: t})) for m in ("input", "branch", "sum", "output")]  # type: ignore[misc]
    out = model(x0)
    for handle in handles:
        handle.remove()
    assert list(seen) == ["input", "branch", "sum", "output"]
    torch.testing.assert_close(seen["input"], x0)
    torch.testing.assert_close(seen["sum"], seen["input"] + seen["branch"])
    torch.testing.assert_close(seen["output"], out)
    assert torch.equal(model[0].norm(seen["sum"]), out)


class Repeated(nn.Module):
    """One block, used again and again, as ALBERT and Universal Transformers do."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.block, self.times = Block(torch.add), times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.block(x)
        return x


def test_a_reused_module_is_one_site_that_runs_several_times() -> None:
    (site,) = find_sites(Repeated(4), torch.randn(2, 5, WIDTH))
    assert (site.calls, site.placement) == (4, "post")
    assert "4 times" in site.stuck


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.blocks, self.reentrant = stack(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_are_seen(reentrant: bool) -> None:
    found = find_sites(Checkpointed(reentrant), torch.randn(2, 5, WIDTH))
    assert [(site.name, site.stack) for site in found] == [(f"blocks.{i}", "model") for i in range(3)]


class Odd(nn.Module):
    """Additions that are no residual: a parameter, other shapes, two branches, a gate, and a skip over two sites."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.a, self.b = nn.Parameter(torch.ones(1, 5, WIDTH)), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = stack(2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.bias
        x = self.a(x) + self.b(x)
        x = x + x.sigmoid()
        x = x + x.mean(1, keepdim=True)
        return x + self.blocks(x)


def test_additions_that_are_no_residual_are_listed_with_the_reason() -> None:
    found = find_sites(Odd(), torch.randn(2, 5, WIDTH))
    assert [site.name for site in found] == ["blocks.0", "blocks.1"]
    reasons = ["parameter", "neither operand", "no matrix", "shapes differ", "goes round 2 other sites"]
    assert [reason in other.reason for other, reason in zip(found.passed_over, reasons, strict=True)] == [True] * 5
    assert "goes round 2 other sites" in str(found)


def test_a_model_without_residuals_is_an_error_that_says_what_was_seen() -> None:
    with pytest.raises(ModelError, match=r"Linear has no residual connection x \+ f\(x\) that can be found: 0 additions"):
        find_sites(nn.Linear(WIDTH, WIDTH), torch.randn(2, WIDTH))


def test_tracing_leaves_the_model_as_it_was() -> None:
    model = stack().eval()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    find_sites(model, torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1)))
    assert not model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Parallel(nn.Module):
    """x + attention(norm(x)) + feed-forward(norm(x)), both ways of writing it."""

    def __init__(self, branches_first: bool) -> None:
        super().__init__()
        layer: dict[str, Callable[[int], nn.Module]] = {
            "norm": nn.LayerNorm,
            "qkv": lambda w: nn.Linear(w, 3 * w),
            "out": lambda w: nn.Linear(w, w),
        }
        ffn: dict[str, Callable[[int], nn.Module]] = {"fc1": lambda w: nn.Linear(w, 16), "fc2": lambda w: nn.Linear(16, w)}
        self.layers = nn.ModuleList(nn.ModuleDict({k: make(WIDTH) for k, make in (layer | ffn).items()}) for _ in range(3))
        self.branches_first = branches_first

    def forward(self, x: Tensor) -> Tensor:
        layer: Any
        for layer in self.layers:
            y = layer["norm"](x)
            a = layer["out"](F.scaled_dot_product_attention(*layer["qkv"](y).chunk(3, -1)))
            f = layer["fc2"](layer["fc1"](y).relu())
            x = x + (a + f) if self.branches_first else x + a + f
        return x


@pytest.mark.parametrize("branches_first", [True, False])
def test_parallel_branches_are_one_site(branches_first: bool) -> None:
    found = find_sites(Parallel(branches_first), torch.randn(2, 5, WIDTH))
    assert [(site.stack, site.index, site.placement) for site in found] == [("model", i, "pre") for i in (1, 2, 3)]
    assert [" ".join(m.role for m in site.matrices) for site in found] == ["q k v out fc1 fc2"] * 3
    assert [{output.path.split(".")[-2] for output in site.outputs} for site in found] == [{"out", "fc2"}] * 3
    assert len(found.passed_over) == 3 * branches_first
