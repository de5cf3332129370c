"""What the paper says of gradients and output changes, on small models."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import bathy
from bathy.clinic.examination import study
from bathy.clinic.exams.activations import activations
from bathy.clinic.exams.gradients import gradients
from bathy.clinic.exams.stability import random_change
from bathy.clinic.laws import Growth, growths, offset, theorem_1, theorem_2
from bathy.clinic.measures import Fit
from bathy.clinic.readings import Reading, select, values


def build(seed: int, encoder: str, decoder: str, depths: tuple[int, int], width: int = 128) -> bathy.Transformer:
    config = bathy.TransformerConfig(
        vocab=200, width=width, ffn=4 * width, heads=4, encoder_layers=depths[0], decoder_layers=depths[1],
        encoder_scheme=encoder, decoder_scheme=decoder,
    )  # fmt: skip
    return bathy.Transformer(config)


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(4, 200, (rows, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("encoder", "decoder", "vanishes"),
    [("post_ln", "post_ln", True), ("post_ln", "pre_ln", False), ("pre_ln", "pre_ln", False)],
)
def test_gradients_vanish_in_post_ln_decoders_only_and_across_cross_attention(
    encoder: str, decoder: str, vanishes: bool
) -> None:
    """Figure 3: 18L-18L at width 128."""
    torch.manual_seed(0)
    rows = bathy.examine(build(0, encoder, decoder, (18, 18)), (tokens(4, 12), tokens(4, 10)), exams=["gradients"]).readings
    below = {row.index: row.value for row in select(rows, "gradient", stack="decoder")}
    encoder_rows = values(rows, "gradient", stack="encoder")[1:]
    assert encoder_rows[0] / encoder_rows[-1] > 0.3
    assert (below[1] / below[54] < 0.1) if vanishes else (below[1] / below[54] > 0.3)
    if vanishes:
        drops = dict.fromkeys(("self_attention", "cross_attention", "ffn"), 0.0)
        for row in select(rows, "gradient", stack="decoder")[1:]:
            drops[row.kind] += math.log(row.value / below[row.index - 1])
        assert drops["cross_attention"] > 0.8 * math.log(below[54] / below[0])


def test_output_change_is_linear_in_depth_for_post_ln_and_logarithmic_for_pre_ln() -> None:
    """Figure 4 at a size for tests; `bathy reproduce figure-4` does it at the paper's."""
    batch, rows = tokens(8, 24), []
    for scheme in ("post_ln", "pre_ln"):
        exams: list[Any] = [activations, partial(random_change, draws=1)]
        rows += study(partial(build, encoder=scheme, decoder=scheme, depths=(18, 0), width=64), batch, range(10), exams, scheme)
    post, pre = growths(rows)
    assert post.linear.r2 > 0.95 > post.log.r2 and 0.9 < post.slope < 1.25
    assert pre.log.r2 > pre.linear.r2 and 0.45 < pre.slope < 0.75 and not pre.saturated
    law = theorem_2([post, pre])
    assert law.r2 > 0.95 and max(law.own.values()) < 1.5 * min(law.own.values())


def backward_study(scheme: str) -> list[Reading]:
    make = partial(build, encoder=scheme, decoder=scheme, depths=(4, 4), width=64)
    return study(make, (tokens(4, 16), tokens(4, 14)), range(8), [gradients], scheme)


def test_theorem_1_and_remark_1_hold_in_the_mean_and_not_in_post_ln_decoders() -> None:
    rows = backward_study("post_ln")
    encoder, decoder = theorem_1(rows)
    assert encoder.seeds == 8 and encoder.mean > 1 > 0.9 > decoder.mean and encoder.holds > 0.7 > decoder.holds
    assert all(found.mean > 1 and found.holds == 1 for found in theorem_1(backward_study("pre_ln")))
    logs = []
    for seed in range(8):
        down = [row.value for row in select(rows, "gradient_variance", seed=seed, stack="encoder")]
        logs.append(np.log(down[2] / down[3]))
    assert math.isclose(encoder.ratios[2], math.exp(np.mean(logs)), rel_tol=1e-9)
    assert math.isclose(encoder.errors[2], np.std(logs, ddof=1) / math.sqrt(8), rel_tol=1e-9)


def test_c_is_the_inputs_variance_by_what_a_layer_adds() -> None:
    rows = [Reading("input_variance", 3.0, index=1, layer=1), Reading("input_variance", 9.0, index=2, layer=1)]
    rows += [Reading("branch_variance", v, index=i + 1, layer=i // 2 + 1) for i, v in enumerate([0.5, 1.0, 0.5, 2.0])]
    assert offset(rows) == 3.0 / 2.0


def test_theorem_2_finds_its_constant() -> None:
    flat = Fit(0, 0, 0)
    found = [Growth(n, "", 0, "", [1, 2], [0.3 * b for b in beta], beta, 1, flat, flat, flat, 1) for n, beta in
             (("a", [1.0, 2.0]), ("b", [0.5, 0.7]))]  # fmt: skip
    law = theorem_2(found)
    assert law.c == pytest.approx(0.3) and law.r2 == pytest.approx(1) and law.own == pytest.approx({"a": 0.3, "b": 0.3})
