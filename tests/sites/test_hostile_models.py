# mypy: disable-error-code="operator, union-attr, attr-defined, arg-type, misc, no-untyped-call, override"
"""Models whose sums are easily mistaken: two streams through one stack, sums within branches, kernels of other libraries."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import gap, response, results
from test_odd_models import LAYERS, WIDTH, Net, post, pre, tokens
from torch import Tensor, nn

import bathy
from bathy.errors import ModelError


class Siamese(Net):
    """Two texts through the same layers, one after the other or layer by layer."""

    def __init__(self, step: Any, together: bool) -> None:
        super().__init__(step)
        self.together = together

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.embed(a), self.embed(b)
        if self.together:
            for layer in self.layers:
                x, y = layer(x), layer(y)
        else:
            for layer in self.layers:
                x = layer(x)
            for layer in self.layers:
                y = layer(y)
        return self.head(x), self.head(y)


@pytest.mark.parametrize("together", [False, True])
def test_a_siamese_model_gets_what_one_of_its_towers_gets(together: bool) -> None:
    """Two streams that pass a stack once each are not one that passes it twice."""
    ids = tokens()
    model, tower = Siamese(post(torch.add), together), Net(post(torch.add))
    found, alone = bathy.stabilise_(model, (ids, ids)), bathy.stabilise_(tower, ids)
    assert found.omega == pytest.approx(alone.omega, rel=1e-5)
    assert found.treatments[0].before == pytest.approx(alone.treatments[0].before, rel=1e-5)
    pair = (ids.flip(0), ids.flip(1))
    assert gap(results(model, pair), results(bathy.fold(model), pair)) < 1e-4


def interpolated(layer: Any, x: Tensor) -> Tensor:
    x = x + 0.3 * (layer.att(layer.n1(x)) - x)
    return x + 0.3 * (layer.ffn(layer.n2(x)) - x)


def positioned(layer: Any, x: Tensor) -> Tensor:
    """Positions by a convolution, added within the branch, behind its norm."""
    y = layer.n1(x)
    x = x + layer.att(y + layer.conv(y.transpose(1, 2)).transpose(1, 2))
    return x + layer.ffn(layer.n2(x))


def by_groups(layer: Any, x: Tensor) -> Tensor:
    """Channels in groups, each reading what the one before gave: cascaded attention, Res2Net."""
    first, second = layer.n1(x).chunk(2, -1)
    first = layer.small(first)
    second = layer.small(second + first)
    x = x + layer.att.out(torch.cat([first, second], -1))
    return x + layer.ffn(layer.n2(x))


def into(layer: Any, x: Tensor) -> Tensor:
    """The sum is written into a tensor that is there already."""
    add: Callable[..., Tensor] = lambda x, a: x + a if torch.is_grad_enabled() else torch.add(x, a, out=torch.empty_like(x))  # noqa: E731
    x = add(x, layer.att(layer.n1(x)))
    return add(x, layer.ffn(layer.n2(x)))


@torch.library.custom_op("bathy_tests::fused", mutates_args=())
def fused(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (x @ a.t()).relu() @ b.t()


def by_kernel(layer: Any, x: Tensor) -> Tensor:
    x = x + layer.att(layer.n1(x))
    return x + fused(layer.n2(x), layer.ffn.a.weight, layer.ffn.b.weight)


def bilinear(layer: Any, x: Tensor) -> Tensor:
    x = x + layer.att(layer.n1(x))
    return x + layer.form(layer.n2(x), x.roll(1, 1))


def memory(layer: Any, x: Tensor) -> Tensor:
    """Attention over keys and values that are parameters."""
    x = x + layer.att(layer.n1(x))
    learned = [weight.expand(len(x), -1, -1) for weight in (layer.att.out.weight, layer.ffn.a.weight[:WIDTH])]
    return x + F.scaled_dot_product_attention(layer.n2(x), *learned)


REMEDY = {
    interpolated: "part of its branch is the stream itself",
    positioned: "",
    by_groups: "",
    into: "",
    by_kernel: "ends in fused, which a factor does not pass",
    bilinear: "ends in _trilinear, which a factor does not pass",
    memory: "",
}
"""What stands in the way of smaller branches; nothing where they can be had."""


@pytest.mark.parametrize("step", REMEDY, ids=lambda step: step.__name__)
def test_the_sums_of_the_stream_are_its_sites_and_no_others(step: Any) -> None:
    model, ids = Net(step), tokens()
    for layer in model.layers:
        layer.conv, layer.small = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.Linear(WIDTH // 2, WIDTH // 2)
        layer.form = nn.Bilinear(WIDTH, WIDTH, WIDTH)
    sites = bathy.find_sites(model, ids)
    assert (len(sites), {site.placement for site in sites}, len({site.stack for site in sites})) == (2 * LAYERS, {"pre"}, 1)
    state, before = {name: value.clone() for name, value in model.state_dict().items()}, response(model, ids)
    if REMEDY[step]:
        with pytest.raises(ModelError, match=REMEDY[step]):
            bathy.stabilise_(model, ids, "scaled_init")
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    else:
        assert all(treatment.kept for treatment in bathy.stabilise_(model, ids, "scaled_init").treatments)
        assert response(model, ids) < before


def test_a_matrix_that_is_the_embedding_too_is_not_scaled() -> None:
    class Tied(Net):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for layer in self.layers:
                x = x + layer.att(layer.n1(x))
                x = x + F.gelu(layer.n2(x) @ self.embed.weight.t()) @ self.embed.weight
            return self.head(x)

    with pytest.raises(ModelError, match=r"its embed.weight is also used by embedding in embed, outside the branches"):
        bathy.stabilise_(Tied(pre(torch.add)), tokens(), "scaled_init")


def test_experts_picked_from_one_parameter_are_a_feed_forward() -> None:
    class Experts(Net):
        def __init__(self) -> None:
            super().__init__(None)
            for layer in self.layers:
                layer.up = nn.Parameter(torch.randn(3, WIDTH, WIDTH) / WIDTH**0.5)
                layer.down = nn.Parameter(torch.randn(3, WIDTH, WIDTH) / WIDTH**0.5)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for layer in self.layers:
                y = layer.n2(x).flatten(0, 1)
                best = (y @ layer.att.out.weight[:, :3]).argmax(-1)
                y = torch.bmm(F.gelu(torch.bmm(y.unsqueeze(1), layer.up[best])), layer.down[best])
                x = x + y.view_as(x)
            return self.head(x)

    sites = bathy.find_sites(Experts(), tokens())
    assert {site.kind for site in sites} == {"ffn"}
    assert [output.path for output in sites[1].outputs] == ["layers.1.down"]


def test_models_that_cannot_be_trained_yet_are_refused_by_what_is_missing() -> None:
    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.fft.fft(x).real

    lazy = Net(post(torch.add))
    lazy.layers[1].ffn.b = nn.LazyLinear(WIDTH)
    with torch.inference_mode():
        frozen = Net(post(torch.add))
    for model, reason in (
        (Bare(), "no parameters"),
        (lazy, "has no shape yet; run the model once"),
        (frozen, "inference_mode"),
    ):
        for act in (bathy.find_sites, bathy.stabilise_, bathy.examine):
            with pytest.raises(ModelError, match=reason):
                act(model, tokens())
    with pytest.raises(ModelError, match="it adds vectors: give it a batch"):
        bathy.find_sites(Net(lambda layer, x: x + layer.ffn(x)), torch.tensor(3))


def test_norms_over_channels_that_come_first_are_examined() -> None:
    class Norm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 1), Norm(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x + self.b(self.a(x).relu()))

    torch.manual_seed(0)
    model, pictures = nn.Sequential(*(Block() for _ in range(3))), torch.randn(4, 8, 5, 5)
    assert len(bathy.find_sites(model, pictures)) == 3
    assert bathy.examine(model, pictures).readings
    with pytest.raises(ModelError, match="channels come first; scheme='scaled_init'"):
        bathy.stabilise_(model, pictures)
