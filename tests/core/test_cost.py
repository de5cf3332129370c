"""Operations counted from the matrices are those that torch counts while the model runs."""

import pytest
import tiny
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bathy import SCHEMES, Transformer
from bathy.core.cost import TRAINING, attention_flops, batch_flops, matrix_flops, skeleton


def counted(model: Transformer, *batch: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(*batch)
    return counter.get_total_flops()


def expected(model: Transformer, rows: int, lengths: list[int]) -> float:
    """Torch counts all of a causal square, also where nothing is seen."""
    sizes = {stack: torch.full((rows,), length) for stack, length in zip(model.config.stacks, lengths, strict=True)}
    by_token = matrix_flops(model)
    total = sum(by_token[stack] * float(size.sum()) for stack, size in sizes.items()) + attention_flops(model, sizes)
    if "decoder" in sizes:
        t = lengths[-1]
        total += model.config.decoder_layers * 4 * model.config.width * rows * (t * t - t * (t + 1) / 2)
    return total


@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
@pytest.mark.parametrize("name", SCHEMES)
def test_the_count_is_torchs(name: str, depths: tuple[int, int]) -> None:
    model = tiny.model(name, depths, attention_dropout=1e-6)  # by products: torch does not count its fused attention on a CPU
    lengths = [7, 5][: len(model.config.stacks)]
    batch = [torch.randint(4, 50, (3, length)) for length in lengths]
    assert counted(model, *batch) == expected(model, 3, lengths)


def test_an_update_is_three_forward_passes_and_needs_no_weights() -> None:
    model = skeleton(tiny.config())
    lengths = {"encoder": torch.tensor([4, 2]), "decoder": torch.tensor([3, 3])}
    by_token = matrix_flops(model)
    forward = 6 * by_token["encoder"] + 6 * by_token["decoder"] + attention_flops(model, lengths)
    assert batch_flops(model, lengths) == TRAINING * forward
    assert model.output_weight.device.type == "meta"
