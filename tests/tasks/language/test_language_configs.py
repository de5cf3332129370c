"""The shipped configs of language models are what they say."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bathy.core.cost import skeleton
from bathy.core.schemes import SCHEMES
from bathy.core.transformer import TransformerConfig
from bathy.tasks import read_config
from bathy.tasks.language.export import fitting

CONFIGS = sorted(path for path in (Path(__file__).parents[3] / "configs").glob("*lm_*.toml"))


def parameters(name: str) -> int:
    config: Any = read_config(next(path for path in CONFIGS if path.stem == name))
    model = skeleton(TransformerConfig(vocab=config.data.vocab, pad=-1, **config.model.model_dump()))
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_reference_is_nanogpts_cpu_line_at_twice_its_learning_rate() -> None:
    config: Any = read_config(next(path for path in CONFIGS if path.stem == "lm_tinyshakespeare_cpu"))
    model, optim, train = config.model, config.optim, config.train
    assert (model.decoder_layers, model.heads, model.width, model.ffn, model.context) == (4, 4, 128, 512, 64)
    assert (train.tokens, train.steps, train.accumulate) == (12 * 64, 2000, 1)
    assert (optim.name, optim.lr, optim.lr_floor, optim.beta2, optim.warmup, optim.clip) == (
        "adamw",
        2e-3,
        2e-4,
        0.99,
        100,
        1.0,
    )
    assert (optim.weight_decay, model.biases, model.positions, model.feed_forward) == (0.1, False, "learned", "gelu")
    assert (model.dropout, model.embedding_scale, model.init, model.tie_embeddings) == (0.0, "one", "normal", True)
    # nanoGPT says 0.80 million for its 65 characters, positions left out; ours has three special tokens more
    assert parameters("lm_tinyshakespeare_cpu") - 3 * 128 - 64 * 128 == 795_904


def test_the_deep_base_model_has_the_parameters_of_the_shallow_one() -> None:
    shallow, deep = parameters("lm_base_12l"), parameters("lm_base_48l")
    assert math.isclose(shallow, deep, rel_tol=0.01) and 95e6 < shallow < 130e6


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_can_be_exported_to_a_class(path: Path) -> None:
    config: Any = read_config(path)
    (stack,) = config.model.stacks
    folds = SCHEMES[config.model.scheme_name(stack)].folds
    plain = {f"{stack}_scheme": "post_ln"} if folds else {}
    wanted = {
        "lm_tinyshakespeare_cpu": "gpt2",
        "lm_stdlib_24l": "opt",
        "lm_tinyshakespeare_ladder": "opt",
        "mlm_stdlib_12l": "bert",
    }
    made = TransformerConfig(vocab=100, pad=-1, **config.model.model_dump() | plain)
    assert fitting(made) == wanted.get(path.stem, "qwen3")


DOCS = Path(__file__).parents[3] / "docs"


def table(name: str) -> list[str]:
    """The rows of a comparison as the page has them: rate, seeds, loss on the second half, gain on the first row."""
    found = json.loads((DOCS / "results" / f"bench_{name}.json").read_text(encoding="utf-8"))["result"]["rows"]
    return [
        f"| {row['variant']} | {row['rate']:g} | {row['seeds']} | {row['loss']:.3f}{spread(row['deviation'])} | "
        f"{row['gain']:+.3f}{spread(row['gain_deviation'])} |"
        for row in found
    ]


def spread(deviation: float | None) -> str:
    return "" if deviation is None else f" ± {deviation:.3f}"


@pytest.mark.parametrize("name", ["lm_parts", "lm_deep"])
def test_the_page_has_the_numbers_of_the_comparison(name: str) -> None:
    page = (DOCS / "language.md").read_text(encoding="utf-8")
    assert not [row for row in table(name) if row not in page]
