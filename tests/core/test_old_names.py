"""What version 0.1 saved with encoder_attention in its names is read as cross_attention."""

import json
from pathlib import Path

import torch
from torch import nn

from bathy.admin.profile import Profile
from bathy.clinic import readings
from bathy.tasks.models import load
from bathy.train.checkpoint import checkpoints, read_trainer, read_weights
from bathy.train.config import OptimConfig
from bathy.train.optim import load_optimizer_state_, make_optimizer

RUN = Path(__file__).parents[1] / "version_0_1" / "run"
(FOLDER,) = (folder for _, folder in checkpoints(RUN))
OLD, NEW = "decoder.layers.0.encoder_attention.f.q.weight", "decoder.layers.0.cross_attention.f.q.weight"


def cross(model: nn.Module) -> nn.Parameter:
    return dict(model.named_parameters())[NEW]


def test_weights_go_to_cross_attention() -> None:
    assert torch.equal(cross(load(RUN)), read_weights(FOLDER)[OLD])


def test_the_optimisers_memory_goes_to_cross_attention() -> None:
    model, state = load(RUN), read_trainer(FOLDER)["optimizer"]
    optimizer = make_optimizer(model, OptimConfig())
    load_optimizer_state_(model, optimizer, state)
    assert torch.equal(optimizer.state[cross(model)]["exp_avg"], state[OLD]["exp_avg"])


def test_readings_and_profiles_say_cross_attention(tmp_path: Path) -> None:
    row = {"quantity": "omega", "value": 1.0, "site": "decoder.layers.0.encoder_attention", "kind": "encoder_attention"}
    (tmp_path / "readings.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    (reading,), _ = readings.read(tmp_path / "readings.jsonl")
    assert (reading.kind, reading.site) == ("cross_attention", "decoder.layers.0.cross_attention")
    assert "decoder.layers.1.cross_attention" in Profile.load(RUN / "profile.json").omega
