# mypy: disable-error-code="union-attr, operator, index"
"""A prepared decoder computes what the model's modules compute, or is not used."""

import pytest
import tiny
import torch
from torch import Tensor

from bathy import SCHEMES, Transformer
from bathy.tasks.inference import Prepared, begin, prepare
from bathy.tasks.special_tokens import BOS

VARIANTS = [
    *({"scheme": name} for name in SCHEMES),
    {"norm": "rms"},
    {"norm": "scale"},
    {"activation": "gelu"},
    {"tie_embeddings": False},
    {"encoder_scheme": "pre_ln"},
]


def ready(**changes: object) -> Transformer:
    return tiny.shake_(tiny.model(**changes)).double().eval().requires_grad_(False)  # type: ignore[arg-type]


def walk(model: Transformer | Prepared, source: Tensor, beams: int, steps: int = 30) -> list[Tensor]:
    """Logits of random tokens, hypotheses that change places and sentences that leave, the same for every model."""
    generator = torch.Generator().manual_seed(5)
    rows, found, run = len(source), [], begin(model, source, beams)
    with torch.inference_mode():
        for step in range(steps):
            columns = beams if step else 1
            tokens = torch.randint(4, 50, (rows, beams), generator=generator) if step else torch.full((rows, 1), BOS)
            found.append(run.step(tokens))
            choice = torch.randint(columns, (rows, beams), generator=generator)
            run.follow_((choice + columns * torch.arange(rows)[:, None]).flatten().tolist())
            if step in (7, 20):
                run.select_([2, 1] if rows == 3 else [1])
                rows = 2 if rows == 3 else 1
    return found


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_a_prepared_decoder_gives_the_logits_of_the_modules(changes: dict[str, str], beams: int) -> None:
    model, source = ready(**changes), tiny.sentences(3)
    prepared = prepare(model)
    assert isinstance(prepared, Prepared)
    for ours, expected in zip(walk(prepared, source, beams), walk(model, source, beams), strict=True):
        torch.testing.assert_close(ours, expected)


def test_the_modules_stay_where_the_faster_way_would_be_wrong() -> None:
    model = ready()
    model.decoder.layers[0].self_attention.f.register_forward_hook(lambda module, args, out: -out)
    assert prepare(model) is model
    assert prepare(ready().train()) is not prepare(ready()) and isinstance(prepare(ready().train()), Transformer)
    strange = ready()
    branch = strange.encoder.layers[1].ffn.f
    branch.__class__ = type("Other", (type(branch),), {})
    assert prepare(strange) is strange
