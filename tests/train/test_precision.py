# mypy: disable-error-code="union-attr, operator, index"
"""float16's rules, and where an overflow began."""

from contextlib import nullcontext
from typing import Any

import pytest
import tiny
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bathy import Transformer
from bathy.errors import TrainingError
from bathy.kernels.cross_entropy import cross_entropy
from bathy.train.overflow import first_overflow
from bathy.train.precision import PRODUCTS, Precision
from bathy.train.world import CPU


def loss_of(model: Transformer, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model.features(source, target).flatten(0, 1), model.output_weight, target.flatten(), 0.1)[0]


def test_the_scale_doubles_halves_and_gives_up_as_the_paper_s_recipe_says() -> None:
    """It starts at 128, doubles after 256 good updates, halves on overflow down to 1/32; 20 overflows there are the end."""
    precision = Precision("float16", CPU)
    scales = []
    for finite in [True] * 255 + [True] + [False] * 13 + [False] * 19:
        precision.update(finite)
        precision.check("ffn")
        scales.append(precision.scale)
    assert scales[254] == 128 and scales[255] == 256
    assert scales[256:269] == [256 / 2**i for i in range(1, 14)] and set(scales[269:]) == {1 / 32}
    precision.update(False)
    with pytest.raises(TrainingError, match=r"first at ffn: .*bfloat16"):
        precision.check("ffn")
    precision.update(True)
    precision.check("ffn")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_other_formats_count_and_do_not_scale(name: str) -> None:
    precision = Precision(name, CPU)
    for finite in [True] * 300 + [False] * 19:
        precision.update(finite)
        precision.check("nowhere")
    assert precision.scale == 1
    precision.update(False)
    with pytest.raises(TrainingError, match="not finite 20 times"):
        precision.check("nowhere")


@pytest.mark.parametrize("name", ["encoder.layers.1.ffn", "decoder.layers.0.cross_attention"])
def test_an_overflow_is_named_where_it_begins(name: str) -> None:
    model = tiny.model("admin")
    source, target = tiny.batch(model)

    def replay() -> None:
        loss_of(model, source, target).backward()

    assert "embeddings" in first_overflow(model, replay)
    site = model.get_submodule(name)
    handle = site.f.register_forward_hook(lambda module, args, output: output * float("inf"))
    assert first_overflow(model, replay) == f"{name} (forward)"
    handle.remove()
    layer, _, kind = name.rpartition(".")
    handle = site.register_full_backward_pre_hook(lambda module, grad: (grad[0] * torch.inf,))
    assert "(backward)" in first_overflow(model, replay)
    handle.remove()
    assert layer and kind


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_float16_on_a_cpu_multiplies_as_a_gpu_does(dropout: float) -> None:
    """Products of float16 matrices are float32's, rounded; a model's gradient is torch's own but for that."""
    a, b = torch.randn(5, 9, 33).half(), torch.randn(5, 33, 17).half()
    exact, out = (a.float() @ b.float()).half(), torch.empty(9, 17).half()
    precision = Precision("float16", CPU)
    with precision.products():
        assert (a @ b).equal(exact) and (a[0] @ b[0]).equal(exact[0]) and torch.mm(a[0], b[0], out=out) is out
        assert out.equal(exact[0]) and (a.float() @ b.float()).dtype == torch.float32
    grads = []
    for context in (precision.products(), nullcontext()):
        model = tiny.model("admin", dropout=dropout, attention_dropout=dropout).train()
        source, target = tiny.batch(model)
        torch.manual_seed(1)
        with context:
            with precision.autocast():
                loss = loss_of(model, source, target)
            loss.backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert grads[0].isfinite().all() and (grads[0] - grads[1]).norm() < 0.01 * grads[1].norm()


class Multiplied(TorchDispatchMode):
    """What matrices are multiplied in."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in PRODUCTS:
            self.seen.add(args[0].dtype)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "float16"])
def test_the_peak_is_of_the_format_that_products_run_in(name: str) -> None:
    precision = Precision(name, CPU)
    layer, x = torch.nn.Linear(4, 4).to(precision.dtype), torch.ones(2, 4, dtype=precision.dtype)
    with Multiplied() as products, precision.products(), precision.autocast():
        layer(x)
    assert products.seen == {precision.product_dtype}
