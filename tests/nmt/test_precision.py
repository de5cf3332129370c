"""float16's rules, and where an overflow began."""

from contextlib import nullcontext

import pytest
import tiny
import torch

from bathy.errors import TrainingError
from bathy.nmt.objective import Objective
from bathy.nmt.overflow import first_overflow
from bathy.nmt.precision import FLOOR, GROW_AFTER, MOST_OVERFLOWS, Precision
from bathy.nmt.world import CPU


def test_the_scale_doubles_halves_and_gives_up_as_the_recipe_says() -> None:
    precision = Precision("float16", CPU)
    for _ in range(GROW_AFTER):
        precision.update(True)
    assert precision.scale == 256
    for _ in range(13):
        precision.update(False)
    assert (precision.scale, precision.overflows) == (FLOOR, 0)
    for _ in range(MOST_OVERFLOWS):
        precision.check("ffn")
        precision.update(False)
    with pytest.raises(TrainingError, match=r"first at ffn: .*bfloat16"):
        precision.check("ffn")
    precision.update(True)
    precision.check("ffn")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_other_formats_count_and_do_not_scale(name: str) -> None:
    precision = Precision(name, CPU)
    for finite in [True] * 300 + [False] * MOST_OVERFLOWS:
        precision.check("nowhere")
        precision.update(finite)
    assert precision.scale == 1
    with pytest.raises(TrainingError, match="not finite 20 times"):
        precision.check("nowhere")


@pytest.mark.parametrize("name", ["encoder.layers.1.ffn", "decoder.layers.0.encoder_attention"])
def test_an_overflow_is_named_where_it_begins(name: str) -> None:
    model = tiny.model("admin")
    source, target = tiny.batch(model)
    objective = Objective(model, 0.1)

    def replay() -> None:
        objective(source, target, target)[0].backward()

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
                loss = Objective(model, 0.1)(source, target, target)[0]
            loss.backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert grads[0].isfinite().all() and (grads[0] - grads[1]).norm() < 0.01 * grads[1].norm()
