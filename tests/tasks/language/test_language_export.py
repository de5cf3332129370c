"""Hugging Face's classes say what our models say, and refuse by name what they cannot hold."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny as models
import torch
from running import train
from typer.testing import CliRunner

from bathy.cli import app
from bathy.errors import ConfigError, ModelError
from bathy.tasks.language.codec import Codec
from bathy.tasks.language.export import export, fitting
from bathy.tasks.language.export.classes import CLASSES
from bathy.tasks.language.export.compare import compare
from bathy.tasks.language.sample import Sampler
from bathy.tasks.language.sampling import Sampling
from bathy.tasks.models import load
from bathy.tasks.translation.translate import decode_settings
from bathy.tasks.verify import verify

transformers = pytest.importorskip("transformers")
LLAMA: dict[str, Any] = {
    "scheme": "pre_ln", "norm": "rms", "positions": "rotary", "feed_forward": "swiglu", "biases": False, "heads": 4,
    "kv_heads": 2, "max_length": 32,
}  # fmt: skip
GPT2: dict[str, Any] = {"scheme": "pre_ln", "positions": "learned", "feed_forward": "gelu", "max_length": 24}
BERT = GPT2 | {"scheme": "admin", "depths": (3, 0), "embedding_norm": True, "head": "bert", "embedding_scale": "one"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", LLAMA),
    "llama with biases and one embedding": ("llama", LLAMA | {"biases": True, "embedding_scale": "one"}),
    "llama untied": ("llama", LLAMA | {"tie_embeddings": False}),
    "qwen3": ("qwen3", LLAMA | {"qk_norm": True}),
    "gpt2": ("gpt2", GPT2),
    "nanoGPT": ("gpt2", GPT2 | {"biases": False, "embedding_scale": "one"}),
    "gpt2 with sinusoids and relu": ("gpt2", GPT2 | {"positions": "sinusoidal", "feed_forward": "relu"}),
    "opt": ("opt", GPT2 | {"scheme": "admin"}),
    "opt with a learned first omega": ("opt", GPT2 | {"scheme": "admin", "learn_first_omega": True}),
    "opt of plain Post-LN, sinusoids": ("opt", GPT2 | {"scheme": "post_ln", "positions": "sinusoidal", "biases": False}),
    "bert": ("bert", BERT),
    "bert scaled": ("bert", BERT | {"embedding_scale": "sqrt_width"}),
}


def folded(settings: dict[str, Any]) -> Any:
    from bathy.tasks.models import fold_if_possible

    values: dict[str, Any] = {"depths": (0, 3), "pad": -1, **settings}
    made = models.model(**values).eval()
    return fold_if_possible(models.shake_(made))


@pytest.mark.parametrize("case", MODELS)
def test_the_class_says_what_the_model_says(case: str) -> None:
    to, settings = MODELS[case]
    model = folded(settings)
    assert fitting(model.config) == to
    peer = CLASSES[to].build(model, 1)
    rows = torch.randint(50, (6, 16))
    found = compare(model, peer, rows, end=1)
    assert found.distance < 1e-4 and not found.different and found.identical > 3
    if to != "bert":  # with their cache
        whole = model(rows[:2])
        first = peer(input_ids=rows[:2, :9], use_cache=True)
        last = peer(input_ids=rows[:2, 9:], past_key_values=first.past_key_values).logits
        torch.testing.assert_close(last, whole[:, 9:], atol=1e-4, rtol=1e-4)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a scheme": ("gpt2", GPT2 | {"scheme": "rezero"}, "model.decoder_scheme = 'rezero'"),
    "Post-LN in GPT-2": ("gpt2", GPT2 | {"scheme": "post_ln"}, "model.decoder_scheme = 'post_ln'"),
    "positions": ("llama", LLAMA | {"positions": "sinusoidal"}, "model.positions = 'sinusoidal'"),
    "a norm on q and k": ("llama", LLAMA | {"qk_norm": True}, "model.qk_norm = True"),
    "grouped heads": ("gpt2", GPT2 | {"heads": 4, "kv_heads": 2}, "model.kv_heads = 2"),
    "capped logits": ("opt", GPT2 | {"scheme": "post_ln", "logit_cap": 30.0}, "model.logit_cap = 30.0"),
    "embeddings without a norm": ("bert", BERT | {"embedding_norm": False}, "model.embedding_norm = False"),
    "an encoder": ("gpt2", BERT, "encoder layers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_class_cannot_hold_is_refused_by_name(case: str) -> None:
    to, settings, name = REFUSED[case]
    with pytest.raises(ModelError) as caught:
        CLASSES[to].check(folded(settings).config)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_that_no_class_holds_says_why_for_each() -> None:
    with pytest.raises(ModelError) as caught:
        fitting(folded(GPT2 | {"scheme": "rezero"}).config)
    assert all(f"{name} cannot hold" in str(caught.value) for name in CLASSES)


def test_a_run_is_exported_and_loads_from_disk_with_its_tokenizer(language_config: Callable[..., Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(language_config(model={"decoder_scheme": "admin", "feed_forward": "gelu"}, train={"steps": 3}), run)
    result = CliRunner().invoke(app, ["export", str(run), "--to", "huggingface"], catch_exceptions=False)
    assert result.exit_code == 0 and "as opt" in result.output
    folder = tmp_path / "run-huggingface"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    prompt = tokenizer(tokenizer.eos_token + "def f(", add_special_tokens=False, return_tensors="pt")["input_ids"]
    found = tokenizer.decode(model.generate(prompt, max_new_tokens=8, do_sample=False)[0], skip_special_tokens=True)
    ours = Sampler.load(run).texts(["def f("], Sampling(length=8, temperature=0))
    assert found == "def f(" + ours[0]
    assert not verify(folder).faults
    with pytest.raises(ConfigError, match="is a language model; `bathy sample`"):
        decode_settings(run)


def test_our_own_folder_samples_like_the_run(language_config: Callable[..., Any], tmp_path: Path) -> None:
    train(language_config(train={"steps": 2}), tmp_path / "run")
    name, found = export(tmp_path / "run", "bathy", tmp_path / "model")
    assert name == "bathy" and found.distance == 0 and found.identical == found.sequences
    assert load(tmp_path / "model").config == load(tmp_path / "run").config
    assert Codec.load(tmp_path / "model").vocab == 400
    with pytest.raises(ConfigError, match="exists"):
        export(tmp_path / "run", "bathy", tmp_path / "model")
    with pytest.raises(ConfigError, match="marian"):
        export(tmp_path / "run", "marian", tmp_path / "other")
