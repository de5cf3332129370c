"""float16's rules, and where an overflow began."""

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
