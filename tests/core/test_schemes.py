# mypy: disable-error-code="union-attr, operator, index"
"""Every row of the table equals its formula written out by hand, and its constants equal the published ones."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bathy import SCHEMES
from bathy.core.constants import (
    Rates,
    deepnorm_constants,
    layer_scale_value,
    omega_log,
    sub_ln_gain,
    t_fixup_gain,
)
from bathy.core.rates import rates
from bathy.core.residual import Place, Residual
from bathy.core.schemes import find_scheme
from bathy.errors import SchemeError

Hand = Callable[[Any, Tensor, Callable[[Tensor], Tensor]], Tensor]


def with_context(f: nn.Module, context: tuple[Tensor, ...], x: Tensor) -> Tensor:
    return f(x, *context)


def ln(norm: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, 1e-5)


def scaled_post_ln(factor: Callable[[int], float]) -> Hand:
    return lambda r, x, f: ln(r.post, factor(r.place.sites) * x + f(x))


HAND: dict[str, Hand] = {
    "post_ln": lambda r, x, f: ln(r.post, x + f(x)),
    "pre_ln": lambda r, x, f: x + f(ln(r.pre, x)),
    "admin": lambda r, x, f: ln(r.post, (r.skip.omega if r.place.index > 1 else 1) * x + f(x)),
    "admin_rescaled": lambda r, x, f: ln(r.post, x + f(x)),
    "admin_constant": scaled_post_ln(lambda n: math.sqrt((n + 1) / math.log(n + 1) - 1)),
    "admin_constant_1": scaled_post_ln(math.sqrt),
    "admin_constant_n": scaled_post_ln(lambda n: 1),
    "rezero": lambda r, x, f: x + r.branch.omega * f(x),
    "rezero_post_ln": lambda r, x, f: ln(r.post, x + r.branch.omega * f(x)),
    "fixup": lambda r, x, f: x + r.branch.omega * f(x + r.pre.bias),
    "looklinear": lambda r, x, f: ln(r.post, x + f(x)),
    "deepnorm": lambda r, x, f: ln(
        r.post, (0.81 * (3**4 * 2) ** (1 / 16) if r.place.stack == "encoder" else 6**0.25) * x + f(x)
    ),
    "t_fixup": lambda r, x, f: x + f(x),
    "sub_ln": lambda r, x, f: x + f(ln(r.pre, x)),
    "layer_scale": lambda r, x, f: x + r.branch.omega * f(ln(r.pre, x)),
    "peri_ln": lambda r, x, f: x + ln(r.branch, f(ln(r.pre, x))),
    "layer_norm_scaling": lambda r, x, f: x + f(ln(r.pre[0], x) / math.sqrt(r.place.layer)),
    "keel": lambda r, x, f: ln(r.post, r.place.sites * x + f(ln(r.pre, x))),
    "reordered_norm": lambda r, x, f: x + ln(r.branch, f(x)),
    "depth_scaled_sandwich": lambda r, x, f: x + ln(r.branch, f(ln(r.pre, x))),
    "mix_ln": lambda r, x, f: x + f(ln(r.pre, x)),  # of three layers none are Post-LN
    "completep": lambda r, x, f: x + 2 / r.place.layers * f(ln(r.pre, x)),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_is_its_equation(name: str) -> None:
    model = tiny.shake_(tiny.model(name)).double().eval()
    x, memory = torch.randn(2, 5, 16).double(), torch.randn(2, 4, 16).double()
    for residual in (module for module in model.modules() if isinstance(module, Residual)):
        context = (memory,) if residual.f.kind == "cross_attention" else ()
        expected = HAND[name](residual, x, partial(with_context, residual.f, context))
        torch.testing.assert_close(residual(x, *context), expected)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_feed_forward_branch_is_its_equation(name: str) -> None:
    residual = tiny.shake_(tiny.model(name)).double().eval().encoder.layers[1].ffn
    f, x = residual.f, torch.randn(2, 5, 16).double()
    if name == "fixup":
        hidden = (x @ f.fc1.weight.T + f.activation[0].bias).relu() + f.inner.bias
        expected = hidden @ f.fc2.weight.T
    else:
        hidden = (x @ f.fc1.weight.T + f.fc1.bias).relu()
        expected = (ln(f.inner, hidden) if name == "sub_ln" else hidden) @ f.fc2.weight.T + f.fc2.bias
    torch.testing.assert_close(f(x), expected)


BOUND = (6 / 32) ** 0.5  # Xavier for 16 × 16
FFN = (6 / 40) ** 0.5  # Xavier for 16 × 24
FUSED = (6 / 64) ** 0.5  # Xavier for 48 × 16
L = 2 * 3 + 3 * 2
DEEP_E, DEEP_D = 0.87 * (3**4 * 2) ** (-1 / 16), 24**-0.25
SUB_E, SUB_D = math.sqrt(math.log(6) * math.log(6) / 3), math.sqrt(math.log(6))
FIX_E, FIX_D = 0.67 * 3**-0.25, 18**-0.25
BOUNDS: dict[str, list[tuple[float, ...]]] = {  # largest possible size of q, v, out, fc1, fc2 in (encoder, decoder)
    "post_ln": [(FUSED, FUSED, BOUND, FFN, FFN)] * 2,
    "fixup": [(FUSED * L ** (-1 / 6), FUSED * L ** (-1 / 6), 0, FFN * L**-0.5, 0)] * 2,
    "deepnorm": [(BOUND, BOUND * g, BOUND * g, FFN * g, FFN * g) for g in (DEEP_E, DEEP_D)],
    "sub_ln": [(FUSED, FUSED * g, BOUND * g, FFN * g, FFN * g) for g in (SUB_E, SUB_D)],
    "t_fixup": [(FUSED, BOUND * g, BOUND * g, FFN * g, FFN * g) for g in (FIX_E, FIX_D)],
}


@pytest.mark.parametrize("name", SCHEMES)
def test_initial_matrices_fill_their_published_range(name: str) -> None:
    model = tiny.model(name)
    for stack, bounds in zip((model.encoder, model.decoder), BOUNDS.get(name, BOUNDS["post_ln"]), strict=True):
        layer = stack.layers[0]
        weights = {m.role: m.weight for r in (layer.self_attention, layer.ffn) for m in r.f.matrices()}
        for role, bound in zip(("q", "v", "out", "fc1", "fc2"), bounds, strict=True):
            assert 0.9 * bound <= weights[role].abs().max().item() <= bound * (1 + 1e-6), (role, bound)


def test_sub_ln_leaves_cross_attention_alone() -> None:
    f = tiny.model("sub_ln").decoder.layers[0].cross_attention.f
    assert isinstance(f.inner, nn.Identity)
    assert max(m.weight.abs().max().item() for m in f.matrices() if m.role == "out") <= BOUND


def test_looklinear_is_linear_at_the_start() -> None:
    f = tiny.model("looklinear").double().encoder.layers[0].ffn.f
    x, y = torch.randn(2, 7, 16).double()
    torch.testing.assert_close(f(2 * x - 3 * y), 2 * f(x) - 3 * f(y))


def test_rezero_shares_alpha_within_a_layer_and_is_the_identity_at_the_start() -> None:
    model = tiny.model("rezero").eval()
    first, second = model.decoder.layers
    assert first.ffn.branch is first.self_attention.branch is first.cross_attention.branch is not second.ffn.branch
    source, target = tiny.batch(model)
    torch.testing.assert_close(model.features(source, target), model.embed(target, "decoder"))


def test_t_fixup_scales_the_embeddings() -> None:
    plain, scaled = tiny.model("post_ln"), tiny.model("t_fixup")
    torch.testing.assert_close(scaled.output_weight, plain.output_weight * (9 * 3) ** -0.25)


def test_peri_ln_norms_the_embedding() -> None:
    model = tiny.model("peri_ln")
    assert isinstance(model.encoder.first, nn.LayerNorm)
    assert isinstance(model.encoder.final, nn.LayerNorm)


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_with_open_stacks_end_in_a_norm(name: str) -> None:
    final = tiny.model(name).encoder.final
    open_ended = "pre_ln sub_ln layer_scale peri_ln layer_norm_scaling reordered_norm depth_scaled_sandwich mix_ln completep"
    assert isinstance(final, nn.LayerNorm) == (name in open_ended.split())


def at(stack: str, encoder: int, decoder: int, index: int = 1) -> Place:
    layers = encoder if stack == "encoder" else decoder
    return Place("", stack, 1, index, 2 * layers, encoder, decoder, width=16)


GOLDEN_OMEGA = {12: 2.0170, 18: 2.3351, 24: 2.6013, 36: 3.0408, 54: 3.5672, 120: 4.9224, 200: 6.0746, 300: 7.1931}
GOLDEN_DEEPNORM = {
    6: (1.8612, 0.3799), 12: (2.2134, 0.3195), 18: (2.4495, 0.2887), 24: (2.6321, 0.2686), 60: (3.3098, 0.2136),
    100: (3.7606, 0.1880), 200: (4.4721, 0.1581), 1000: (6.6874, 0.1057),
}  # fmt: skip
GOLDEN_DEEPNORM_PAIRS = {
    (6, 6): (1.4179, 0.4970, 2.0598, 0.3433), (12, 12): (1.7609, 0.4002, 2.4495, 0.2887),
    (18, 18): (1.9987, 0.3526, 2.7108, 0.2608), (60, 12): (2.6331, 0.2676, 2.4495, 0.2887),
    (100, 100): (3.4157, 0.2063, 4.1618, 0.1699),
}  # fmt: skip
GOLDEN_SUB_LN = {
    (6, 6): (1.5764, 1.7001, 1.5473), (18, 18): (1.8930, 1.9972, 2.1829),
    (60, 12): (2.1880, 1.8930, 2.3914), (100, 100): (2.3018, 2.3883, 3.1739),
}  # fmt: skip
GOLDEN_T_FIXUP = {6: (0.4281, 0.3689), 12: (0.3600, 0.3102), 18: (0.3253, 0.2803), 100: (0.2119, 0.1826)}


def test_constants_are_the_published_ones() -> None:
    close: Any = {"abs": 5e-5}
    for n, omega in GOLDEN_OMEGA.items():
        assert omega_log(n) == pytest.approx(omega, **close)
    for n, pair in GOLDEN_DEEPNORM.items():
        assert deepnorm_constants(at("encoder", n, 0)) == pytest.approx(pair, **close)
        assert deepnorm_constants(at("decoder", 0, n)) == pytest.approx(pair, **close)
    for (n, m), four in GOLDEN_DEEPNORM_PAIRS.items():
        assert deepnorm_constants(at("encoder", n, m)) + deepnorm_constants(at("decoder", n, m)) == pytest.approx(four, **close)
    for (n, m), (single, decoder, encoder) in GOLDEN_SUB_LN.items():
        gains = sub_ln_gain(at("encoder", n, 0)), sub_ln_gain(at("decoder", n, m)), sub_ln_gain(at("encoder", n, m))
        assert gains == pytest.approx((single, decoder, encoder), **close)
    for n, pair in GOLDEN_T_FIXUP.items():
        assert (t_fixup_gain(at("encoder", n, n)), t_fixup_gain(at("decoder", n, n))) == pytest.approx(pair, **close)
    assert [layer_scale_value(n) for n in (12, 18, 24, 36)] == [0.1, 0.1, 1e-5, 1e-6]


def test_a_quarter_of_mix_lns_layers_are_post_ln() -> None:
    for layers, first in ((3, 0), (12, 3), (24, 6)):
        stack = tiny.model("mix_ln", (layers, 0)).encoder.layers
        posts = [isinstance(layer.ffn.post, nn.LayerNorm) for layer in stack]
        assert posts == [True] * first + [False] * (layers - first)
        assert [isinstance(layer.self_attention.pre, nn.LayerNorm) for layer in stack] == [not post for post in posts]


def test_the_outer_gamma_of_a_depth_scaled_sandwich_is_the_inverse_root_of_its_layers() -> None:
    layer = tiny.model("depth_scaled_sandwich", (0, 16)).decoder.layers[3].ffn
    assert layer.branch.weight.unique().tolist() == [0.25]
    assert layer.pre.weight.unique().tolist() == [1.0]


def test_completep_carries_a_small_models_rates_over() -> None:
    """Base 2 layers of width 16; this one has 8 of width 64: m = 4, depth 4."""
    normal: dict[str, Any] = {"init": "normal", "embedding_scale": "one", "base_width": 16}
    model = tiny.model("completep", (0, 8), width=64, ffn=96, **normal)
    layer, found = model.decoder.layers[0], rates(model)
    assert layer.ffn.branch.omega == 0.25
    assert layer.self_attention.f.scale == pytest.approx(1 / 32)
    assert model.decoder.final[1].omega == 0.25
    for matrix in layer.ffn.f.matrices():
        assert matrix.weight.std().item() == pytest.approx(0.02 / 2, rel=0.05)
    assert found["decoder.layers.0.ffn.f.fc2.weight"] == Rates(lr=1 / 4, eps=1 / 16, weight_decay=4)
    assert found["decoder.layers.0.ffn.pre.weight"] == Rates(lr=1, eps=1 / 16, weight_decay=1)
    assert found["embeddings.shared.weight"] == found["decoder.final.0.weight"] == Rates(lr=1, eps=1 / 4, weight_decay=1)
    base = tiny.model("completep", (0, 2), **normal)
    assert set(rates(base).values()) == set(rates(tiny.model("admin")).values()) == {Rates()}


@pytest.mark.parametrize("start", [{"init": "xavier"}, {"init": "normal", "embedding_scale": "one"}])
def test_completeps_embeddings_learn_alike_at_every_width(start: dict[str, Any]) -> None:
    """One step of Adam at the same rate moves x_0 of a token as far in a model four times as wide."""
    moved = []
    for width in (16, 64):
        model = tiny.model("completep", (0, 2), width=width, base_width=16, positions="rotary", **start)
        weight, rate = cast(Tensor, model.embeddings["shared"].weight), rates(model)["embeddings.shared.weight"]
        before = model.embed(torch.tensor([[7]]), "decoder").detach()
        with torch.no_grad():
            weight += 0.01 * rate.lr
        moved.append((model.embed(torch.tensor([[7]]), "decoder") - before).square().mean().item())
    assert moved[1] == pytest.approx(moved[0], rel=1e-3)


def test_what_was_not_verified_says_so() -> None:
    for name in ("keel", "admin_constant", "depth_scaled_sandwich", "completep"):
        assert "not verified" in (SCHEMES[name].build.__doc__ or "").lower()


def test_an_unknown_scheme_names_the_nearest() -> None:
    with pytest.raises(SchemeError, match="Did you mean post_ln"):
        find_scheme("postln")
    with pytest.raises(SchemeError, match="Did you mean deepnorm"):
        tiny.config("deep_norm")


@pytest.mark.parametrize("name", SCHEMES)
def test_rms_norm_serves_every_scheme(name: str) -> None:
    model = tiny.model(name, norm="rms")
    assert torch.isfinite(model(*tiny.batch(model))).all()
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())


@pytest.mark.parametrize("name", SCHEMES)
def test_two_hundred_layers_are_finite_forward_and_backward(name: str) -> None:
    model = tiny.model(name, (200, 0), width=64, ffn=64)
    logits = model(tiny.sentences(2, 6))
    logits.logsumexp(-1).mean().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
