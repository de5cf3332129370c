"""Every shipped config is read, is the paper's where it says so, and can be planned without data."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bathy.nmt import plan as module
from bathy.nmt.config import read_config
from bathy.nmt.flops import attention_flops, batch_flops
from bathy.nmt.plan import activation_bytes, make_plan
from bathy.transformer import PRESETS, Transformer, TransformerConfig

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
MILLIONS = {
    "iwslt14_deen": 37, "wmt14_ende_6l": 63, "wmt14_ende_12l": 107, "wmt14_ende_18l": 151,
    "wmt14_enfr_6l": 67, "wmt14_enfr_60l_12l": 262,
}  # fmt: skip
"""Parameters in the paper's appendix."""


def test_all_configs_are_there() -> None:
    multi = [f"multi30k_{size}" for size in ("tiny", "6l", "12l", "18l")]
    paper = [*MILLIONS, "wmt14_ende_60l_12l"]
    assert {path.stem for path in CONFIGS} == {"demo", *multi, *paper}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_read_and_says_how_to_use_it(path: Path) -> None:
    config = read_config(path)
    text = path.read_text()
    assert f"bathy train configs/{path.name}" in text
    assert text.count("#") > 5
    if path.stem in PRESETS:
        assert config.model == PRESETS[path.stem]


@pytest.mark.parametrize("name", MILLIONS)
def test_the_plan_counts_the_papers_parameters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "activation_bytes", lambda *_: 0.0)
    config = read_config(Path(__file__).parents[2] / "configs" / f"{name}.toml")
    plan = make_plan(config)
    assert plan.parameters / 1e6 == pytest.approx(MILLIONS[name], abs=1)
    assert plan.epochs == pytest.approx(config.train.epochs, rel=0.1)


SMALL = ["model.encoder_layers=2", "model.decoder_layers=2", "model.width=32", "model.ffn=48", "model.heads=2", "data.vocab=50"]


@pytest.mark.parametrize("scheme", ["admin", "pre_ln", "rezero"])
def test_planned_activations_are_those_that_autograd_keeps(scheme: str) -> None:
    schemes = [f"model.encoder_scheme={scheme}", f"model.decoder_scheme={scheme}", "model.dropout=0.1"]
    config = read_config(None, [*SMALL, *schemes])
    model = Transformer(TransformerConfig(vocab=50, **config.model.model_dump())).train()
    kept: dict[int, torch.Tensor] = {}
    tokens = torch.full((4, 32), 4)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(x.untyped_storage().data_ptr(), x), lambda x: x):
        features = model.features(tokens, tokens)
    kept[features.untyped_storage().data_ptr()] = features
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    found = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)
    assert activation_bytes(config, 128) == pytest.approx(found, rel=0.01)


def test_half_precision_and_checkpointing_keep_less() -> None:
    kept = [
        activation_bytes(read_config(None, [*SMALL, *changes]), 128)
        for changes in ([], ["train.precision=bfloat16"], ["train.checkpointing=true"])
    ]
    assert kept[1] < 0.9 * kept[0]
    assert kept[2] < 0.6 * kept[0]


def test_shards_share_the_states_and_the_batch_stays() -> None:
    plan = make_plan(read_config(None, [*SMALL, "train.tokens=256", "train.accumulate=4"]), (1, 2, 8))
    alone, ddp, fsdp = plan.shares[0], plan.shares[1], plan.shares[2]
    assert all(share.devices * share.tokens * share.accumulate == plan.batch for share in plan.shares)
    assert ddp.states == alone.states > fsdp.states
    assert plan.shares[3].hours == pytest.approx(alone.hours / 8)


def test_operations_are_those_of_torchs_counter() -> None:
    config = read_config(None, [*SMALL, "model.activation=relu"])
    model = Transformer(TransformerConfig(vocab=50, **config.model.model_dump())).train()
    tokens = torch.full((3, 8), 4)
    in_place = {torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * b[1]}  # torch counts addmm only
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        model(tokens, tokens).sum().backward()
    lengths = torch.full((3,), 8)
    counted = batch_flops(config.model, 50, lengths, lengths) - attention_flops(config.model, lengths, lengths)
    assert counted == counter.get_total_flops()  # torch does not count the CPU's fused attention
