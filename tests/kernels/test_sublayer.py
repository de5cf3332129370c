"""A fused sub-layer gives the modules' numbers, draws included, and stands back where someone looks inside."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bathy import Transformer, TransformerConfig
from bathy.core.residual import Residual, residuals

SIZES: dict[str, Any] = {"vocab": 40, "width": 16, "ffn": 24, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
ALL: dict[str, Any] = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.3}
WHOLE: dict[str, Any] = {"width": 64, "ffn": 128}
"""Sizes of whole vectors, which compiled kernels take."""


def model_of(scheme: str = "admin", **settings: Any) -> Transformer:
    torch.manual_seed(0)
    schemes = {"encoder_scheme": scheme, "decoder_scheme": scheme}
    return Transformer(TransformerConfig(**{**SIZES, **schemes, **settings})).double().train()


def batch(model: Transformer) -> tuple[Tensor, ...]:
    source = torch.randint(4, 40, (5, 7), generator=torch.Generator().manual_seed(1))
    source[2, 4:] = 0
    return (source, source.flip(1)[:, :6].clamp(min=4))[: len(model.config.stacks)]


def loss_and_gradients(model: Transformer) -> list[Tensor | None]:
    torch.manual_seed(7)
    model.zero_grad()
    loss = model(*batch(model)).square().sum()
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, allowed: bool = True) -> Iterator[list[bool]]:
    """Whether each sub-layer that ran was fused; none is where that is not allowed."""
    seen: list[bool] = []
    fused = Residual.fused

    def count(self: Residual, x: Tensor, *context: Any) -> Tensor | None:
        result = fused(self, x, *context) if allowed else None
        seen.append(result is not None)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Residual, "fused", count)
        yield seen


CASES: list[tuple[str, dict[str, Any]]] = [
    *((scheme, ALL) for scheme in ("post_ln", "pre_ln", "admin", "admin_constant", "keel", "deepnorm")),
    ("admin", {"dropout": 0.2}),
    ("post_ln", {}),
    ("pre_ln", {**ALL, "feed_forward": "gelu", "positions": "rotary"}),
    ("post_ln", {"feed_forward": "swiglu", "positions": "rotary", "activation_dropout": 0.2, "biases": False}),
    ("pre_ln", {**ALL, "encoder_layers": 0}),
    ("admin", {**ALL, "decoder_layers": 0, "learn_first_omega": True}),
    *((scheme, {**ALL, **WHOLE}) for scheme in ("post_ln", "pre_ln", "admin", "admin_constant", "deepnorm")),
    ("admin", {**WHOLE, "feed_forward": "swiglu", "positions": "rotary", "encoder_layers": 0}),
    ("pre_ln", {**WHOLE, "feed_forward": "gelu", "decoder_layers": 0, "biases": False, "dropout": 0.1}),
]


@pytest.mark.parametrize(("scheme", "settings"), CASES)
def test_one_node_gives_what_the_modules_give(scheme: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, so that a run that hooks look at now and then is the same run."""
    model = model_of(scheme, **settings).float()
    with counted(monkeypatch) as seen:
        fused = loss_and_gradients(model)
    with counted(monkeypatch, allowed=False):
        plain = loss_and_gradients(model)
    assert seen and all(seen)
    torch.testing.assert_close(fused, plain, rtol=0, atol=0)


def test_blocks_larger_than_the_cache_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(**ALL)
    whole = loss_and_gradients(model)
    monkeypatch.setattr("bathy.kernels.dropout.BLOCK", 100)
    torch.testing.assert_close(loss_and_gradients(model), whole, rtol=0, atol=0)


def test_gradients_of_two_batches_add_up() -> None:
    model = model_of(**ALL)
    once = [None if g is None else g.clone() for g in loss_and_gradients(model)[1:]]
    torch.manual_seed(7)
    model(*batch(model)).square().sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], [None if g is None else 2 * g for g in once])


def test_recomputed_activations_give_the_same_gradients() -> None:
    model = model_of(**ALL)
    kept = [None if value is None else value.clone() for value in loss_and_gradients(model)]
    torch.testing.assert_close(loss_and_gradients(model.checkpoint_()), kept)


@pytest.mark.parametrize(
    "settings",
    [{"qk_norm": True}, {"kv_heads": 2}, {"norm": "rms"}, {"encoder_scheme": "sub_ln"}, {"encoder_scheme": "rezero"}],
)
def test_what_has_no_fused_form_takes_the_modules(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(**ALL, **settings)
    with counted(monkeypatch) as seen:
        loss_and_gradients(model)
    assert False in seen


def test_a_hook_inside_is_called_and_sees_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = model_of(**ALL), list[str]()
    plain = loss_and_gradients(model)
    for name, residual in residuals(model):
        residual.f.register_forward_hook(lambda *_, name=name: calls.append(name))
    with counted(monkeypatch) as seen:
        hooked = loss_and_gradients(model)
    assert len(calls) == len(residuals(model)) and not any(seen)
    torch.testing.assert_close(hooked, plain)


def test_a_hook_on_the_sublayer_itself_sees_what_it_takes_and_gives() -> None:
    model, seen = model_of(**ALL), list[Tensor]()
    first = residuals(model)[0][1]
    first.register_forward_hook(lambda _, inputs, output: seen.extend((inputs[0], output)))
    loss_and_gradients(model)
    assert seen[0].shape == seen[1].shape and seen[1].requires_grad


def test_a_replaced_part_is_used() -> None:
    model = model_of(**ALL)
    ffn: Any = residuals(model)[1][1].f
    ffn.fc2 = nn.Sequential(ffn.fc2)
    before = loss_and_gradients(model_of(**ALL))[0]
    torch.testing.assert_close(loss_and_gradients(model)[0], before)
    torch.nn.utils.parametrizations.weight_norm(ffn.fc1)
    loss_and_gradients(model)
    assert all(p.grad is not None for p in ffn.fc1.parameters())


def test_a_mode_that_records_operations_sees_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(**ALL)
    with counted(monkeypatch) as seen, FlopCounterMode(display=False):
        model(*batch(model))
    assert seen and not any(seen)


def test_evaluation_and_frozen_passes_take_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(**ALL)
    with counted(monkeypatch) as seen:
        model.eval()(*batch(model))
        with torch.no_grad():
            model.train()(*batch(model))
    assert not any(seen)


def test_weights_changed_between_the_passes_are_noticed() -> None:
    model = model_of(**ALL)
    loss = model(*batch(model)).square().sum()
    attention: Any = residuals(model)[0][1].f
    with torch.no_grad():
        attention.out.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
