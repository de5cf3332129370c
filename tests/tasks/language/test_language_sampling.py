"""What sampling promises: the model's own distribution, with or without its cache."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny as models
import torch
from running import train
from torch import Tensor
from typer.testing import CliRunner

from bathy.cli import app
from bathy.errors import ConfigError
from bathy.tasks.language.sampling import Sampling, choose, continued

BLOCKS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "learned": {"positions": "learned", "context": 12, "max_length": 16},
    "rotary": {"positions": "rotary", "feed_forward": "swiglu", "norm": "rms", "heads": 4, "kv_heads": 2, "qk_norm": True},
}


def causal(**changes: Any) -> Any:
    return models.model("pre_ln", (0, 3), pad=-1, **changes).eval()


@pytest.mark.parametrize("block", BLOCKS)
def test_with_the_cache_as_without_it(block: str) -> None:
    model = causal(**BLOCKS[block])
    prompts = [[5, 9, 11], [7, 8, 3]]
    found = list(zip(*continued(model, prompts, Sampling(length=8, temperature=0)), strict=True))
    for prompt, tokens in zip(prompts, found, strict=True):
        row = list(prompt)
        for token in tokens:
            assert int(model(torch.tensor([row]))[0, -1].argmax()) == token
            row.append(token)


def test_prompts_of_unequal_lengths_give_what_each_gives_alone() -> None:
    model, prompts = causal(), [[5, 9, 11, 20, 4], [7], [8, 2, 3]]
    together = list(zip(*continued(model, prompts, Sampling(length=6, temperature=0)), strict=True))
    for prompt, tokens in zip(prompts, together, strict=True):
        alone = [token for (token,) in continued(model, [prompt], Sampling(length=6, temperature=0))]
        assert [token for token in tokens if token >= 0] == alone


def test_a_full_context_goes_on_with_its_newer_half() -> None:
    model = causal(positions="learned", context=8, max_length=8)
    tokens = [token for (token,) in continued(model, [[5]], Sampling(length=20, temperature=0))]
    row = [5, *tokens]
    assert len(tokens) == 20
    # eight tokens are read; the ninth step reads the last four anew, and so on
    assert int(model(torch.tensor([row[5:9]]))[0, -1].argmax()) == tokens[8]
    assert int(model(torch.tensor([row[5:10]]))[0, -1].argmax()) == tokens[9]


def test_the_end_of_a_document_ends_a_sequence() -> None:
    model = causal()
    free = [token for (token,) in continued(model, [[5, 9]], Sampling(length=10, temperature=0))]
    stopped = [token for (token,) in continued(model, [[5, 9]], Sampling(length=10, temperature=0), end=free[2])]
    first = free.index(free[2])
    assert stopped == [*free[:first], -1]


def draws(logits: Tensor, sampling: Sampling, number: int = 4000) -> Counter[int]:
    return Counter(
        choose(logits.expand(number, -1), sampling, [torch.Generator().manual_seed(i) for i in range(number)]).tolist()
    )


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 2}, [1, 3]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_p": 0.4}, [1]),
        ({"top_k": 3, "top_p": 0.9}, [0, 1, 3]),
    ],
)
def test_tokens_are_drawn_by_the_probabilities_that_top_k_and_top_p_leave(settings: dict[str, Any], kept: list[int]) -> None:
    p = torch.tensor([0.2, 0.45, 0.1, 0.25])
    found = draws(p.log()[None], Sampling(temperature=1.0, **settings))
    expected = torch.zeros(4)
    expected[kept] = p[kept] / p[kept].sum()
    for token in range(4):
        assert found[token] / 4000 == pytest.approx(float(expected[token]), abs=0.03)


def test_temperature_sharpens_by_its_power() -> None:
    p = torch.tensor([0.2, 0.8])
    found = draws(p.log()[None], Sampling(temperature=0.5))
    assert found[0] / 4000 == pytest.approx(0.04 / 0.68, abs=0.02)


def test_a_seed_gives_the_same_text_in_any_batch() -> None:
    model, sampling = causal(), Sampling(length=6, temperature=1.0, seed=3)
    one = [token for (token,) in continued(model, [[5]], sampling)]
    two = [first for first, _ in continued(model, [[5], [6]], sampling)]
    assert one == two


def test_an_encoder_and_an_empty_prompt_are_refused() -> None:
    with pytest.raises(ConfigError, match="only a causal model"):
        next(continued(models.model("post_ln", (2, 0)), [[5]], Sampling()))
    with pytest.raises(ConfigError, match="empty"):
        next(continued(causal(), [[]], Sampling()))


def test_the_command_writes_what_the_settings_say(language_config: Callable[..., Any], tmp_path: Path) -> None:
    train(language_config(train={"steps": 2}), tmp_path / "run")
    runner = CliRunner()

    def run(*options: str) -> str:
        command = ["sample", str(tmp_path / "run"), "--prompt", "def ", "--length", "12", *options]
        result = runner.invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    assert run("--seed", "1") == run("--seed", "1") != run("--seed", "2")
    streamed = run("--temperature", "0")
    rows = [json.loads(line) for line in run("--temperature", "0", "--number", "2", "--json").splitlines()]
    assert len(rows) == 2 and all(row["prompt"] + row["continuation"] == streamed.removesuffix("\n") for row in rows)


def test_the_command_scores_any_text(language_config: Callable[..., Any], tmp_path: Path) -> None:
    train(language_config(train={"steps": 2}), tmp_path / "run")
    (tmp_path / "text.txt").write_text("import os\n")
    command = ["score", str(tmp_path / "run"), "--text", str(tmp_path / "text.txt")]
    result = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    (found,) = json.loads(result.output)["scores"].values()
    assert found["bytes"] == 10 and found["bits_per_byte"] == pytest.approx(
        found["loss"] * found["tokens"] / 0.693147 / 10, rel=1e-4
    )
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
