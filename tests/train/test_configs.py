"""Every shipped config is read, is the paper's where it says so, and can be planned without data."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bathy import SCHEMES
from bathy.core.transformer import PRESETS, Transformer, TransformerConfig
from bathy.kernels.library import products_by
from bathy.tasks import make_task, read_config
from bathy.train import plan as module
from bathy.train.activations import activation_bytes
from bathy.train.averaging import SHARE, WIDE
from bathy.train.plan import make_plan

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
MILLIONS = {
    "iwslt14_deen": 37, "wmt14_ende_6l": 63, "wmt14_ende_12l": 107, "wmt14_ende_18l": 151,
    "wmt14_enfr_6l": 67, "wmt14_enfr_60l_12l": 262,
}  # fmt: skip
"""Parameters in the paper's appendix."""


def test_all_configs_are_there() -> None:
    multi = [f"multi30k_{size}" for size in ("tiny", "6l", "12l", "18l", "teacher", "student")]
    paper = [*MILLIONS, "wmt14_ende_60l_12l"]
    language = [
        "lm_tinyshakespeare_cpu",
        "lm_tinyshakespeare_ladder",
        "lm_stdlib_24l",
        "lm_base_12l",
        "lm_base_48l",
        "mlm_stdlib_12l",
    ]
    assert {path.stem for path in CONFIGS} == {"demo", *multi, *paper, *language}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_read_and_says_how_to_use_it(path: Path) -> None:
    config = read_config(path)
    text = path.read_text()
    assert f"bathy train configs/{path.name}" in text
    assert text.count("#") > 5
    if path.stem in PRESETS:
        assert config.model == PRESETS[path.stem]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_no_config_averages_so_much_of_its_run_that_it_is_warned_of(path: Path) -> None:
    config: Any = read_config(path)
    average = config.decode.average if config.task.kind == "translation" else 0
    length, interval = (config.train.epochs, 1) if config.train.save_epochs else (config.train.steps, config.train.save_every)
    assert (average or SHARE if average < 1 else (average - 1) * interval / length) <= WIDE


@pytest.mark.parametrize("name", MILLIONS)
def test_the_plan_counts_the_papers_parameters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "activation_bytes", lambda *_: 0.0)
    config = read_config(Path(__file__).parents[2] / "configs" / f"{name}.toml")
    plan = make_plan(make_task(config), config)
    assert plan.parameters / 1e6 == pytest.approx(MILLIONS[name], abs=1)
    assert plan.epochs == pytest.approx(config.train.epochs, rel=0.1)


SMALL = ["model.encoder_layers=2", "model.decoder_layers=2", "model.width=32", "model.ffn=48", "model.heads=2", "data.vocab=50"]


def kept_bytes(config: Any) -> float:
    with FakeTensorMode():
        return activation_bytes(make_task(config).sketch(), config, 128)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_planned_activations_are_those_that_autograd_keeps(scheme: str) -> None:
    """Of all layers, the ones that the plan repeats included; mix_ln has two kinds of them. By the modules, as on a GPU."""
    schemes = [f"model.encoder_scheme={scheme}", f"model.decoder_scheme={scheme}", "model.dropout=0.1"]
    config = read_config(None, [*SMALL, *schemes, "model.encoder_layers=8", "model.decoder_layers=5"])
    model = Transformer(TransformerConfig(vocab=50, **config.model.model_dump())).train()
    kept: dict[int, torch.Tensor] = {}
    tokens = torch.full((4, 32), 4)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)  # what is looked at is not fused
    saved = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(x.untyped_storage().data_ptr(), x), lambda x: x)
    with saved, products_by("mkl"):
        features = model.features(tokens, tokens)
    hook.remove()
    kept[features.untyped_storage().data_ptr()] = features
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    found = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)
    assert kept_bytes(config) == pytest.approx(found, rel=1e-3)


def test_half_precision_and_checkpointing_keep_less() -> None:
    configs = [
        read_config(None, [*SMALL, *changes]) for changes in ([], ["train.precision=bfloat16"], ["train.checkpointing=true"])
    ]
    kept = [kept_bytes(config) for config in configs]
    assert kept[1] < 0.9 * kept[0]
    assert kept[2] < 0.6 * kept[0]


def test_shards_share_the_states_and_the_batch_stays() -> None:
    config = read_config(None, [*SMALL, "train.tokens=256", "train.accumulate=4"])
    plan = make_plan(make_task(config), config, (1, 2, 8))
    alone, ddp, fsdp = plan.shares[0], plan.shares[1], plan.shares[2]
    assert all(share.devices * share.tokens * share.accumulate == plan.batch for share in plan.shares)
    assert ddp.states == alone.states > fsdp.states
    assert plan.shares[3].hours == pytest.approx(alone.hours / 8)
