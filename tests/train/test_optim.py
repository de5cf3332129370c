"""Optimisers: what is decayed, and states by name."""

from copy import deepcopy

import pytest
import tiny
import torch
from torch import nn

from bathy.core.rates import rates
from bathy.errors import CheckpointError, ConfigError, ModelError
from bathy.train.config import Config, OptimConfig, TrainConfig
from bathy.train.muon import hidden_matrices
from bathy.train.optim import (
    gradient_norm,
    load_optimizer_state_,
    make_optimizer,
    optimizer_state,
    rescale_squares_,
    set_learning_rate,
)


@pytest.mark.parametrize("name", ["radam", "adamw", "adam", "sgd"])
def test_decay_leaves_vectors_alone_unless_told(name: str) -> None:
    model = tiny.model("admin")
    groups = make_optimizer(model, OptimConfig(name=name, weight_decay=0.1)).param_groups
    assert [{p.dim() > 1 for p in group["params"]} for group in groups] == [{True}, {False}]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    decayed = make_optimizer(model, OptimConfig(name=name, weight_decay=0.1, decay_all=True)).param_groups[0]
    assert len(decayed["params"]) == len(list(model.parameters()))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * 0.1
    optimizer.step()


@pytest.mark.parametrize("name", ["radam", "adamw", "sgd", "muon"])
def test_a_state_by_name_is_the_state(name: str) -> None:
    config = OptimConfig(name=name)
    first, second = tiny.model(), tiny.model()
    one = make_optimizer(first, config)
    step(first, one)
    second.load_state_dict(first.state_dict())
    two = make_optimizer(second, config)
    load_optimizer_state_(second, two, deepcopy(optimizer_state(first, one)))
    for model, optimizer in ((first, one), (second, two)):
        step(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_state_of_another_model_is_refused() -> None:
    model = tiny.model("pre_ln")
    with pytest.raises(CheckpointError, match=r"skip\.omega, which the model has not"):
        load_optimizer_state_(model, make_optimizer(model, OptimConfig()), {"skip.omega": {}})


def test_the_gradients_norm_is_over_all_parameters() -> None:
    model = tiny.model()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert gradient_norm(model.parameters()).item() == pytest.approx(2 * count**0.5)


def test_the_fused_steps_of_radam_are_torchs() -> None:
    ours, theirs = tiny.model("admin"), tiny.model("admin")
    theirs.load_state_dict(ours.state_dict())
    one = make_optimizer(ours, OptimConfig(lr=1e-2, weight_decay=0.1))
    groups = [
        {"params": [p for p in theirs.parameters() if (p.dim() > 1) == decayed], "weight_decay": 0.1 * decayed}
        for decayed in (True, False)
    ]
    two = torch.optim.RAdam(groups, 1e-2, (0.9, 0.98), decoupled_weight_decay=True)
    before = [parameter.detach().clone() for parameter in ours.parameters()]
    for _ in range(12):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        one.step()
        two.step()
    moved = [(a - b).abs().max().item() for a, b in zip(ours.parameters(), before, strict=True)]
    apart = [(a - b).abs().max().item() for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)]
    assert min(moved) > 1e-3
    assert max(apart) < 1e-6
    assert {int(row["step"]) for optimizer in (one, two) for row in optimizer.state.values()} == {12}


def test_muon_moves_each_of_q_k_and_v_as_torchs_muon_moves_a_matrix_and_the_rest_as_adamw() -> None:
    config = OptimConfig(name="muon", lr=0.01, weight_decay=0.1, beta2=0.9)
    model = tiny.model("pre_ln", (0, 2), heads=4, kv_heads=2, feed_forward="swiglu")
    alone = {f"{name}/{i}": part for name, parts in _parts(model).items() for i, part in enumerate(parts)}
    twins = {name: nn.Parameter(part.clone()) for name, part in alone.items()}
    others = {name: nn.Parameter(p.detach().clone()) for name, p in model.named_parameters() if name not in _parts(model)}
    options = {"lr": 0.01, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    theirs = torch.optim.Muon(list(twins.values()), **options)  # type: ignore[arg-type]
    decayed = [{"params": [p for p in others.values() if p.dim() > 1], "weight_decay": 0.1}]
    decayed += [{"params": [p for p in others.values() if p.dim() < 2], "weight_decay": 0.0}]
    adamw, ours = torch.optim.AdamW(decayed, 0.01, (0.9, 0.9)), make_optimizer(model, config)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        gradients = {name: [part.clone() for part in parts] for name, parts in _parts(model, gradients=True).items()}
        for name, twin in twins.items():
            twin.grad = gradients[name.split("/")[0]][int(name.split("/")[1])]
        for name, other in others.items():
            other.grad = model.get_parameter(name).grad
        for optimizer in (theirs, adamw, ours):
            optimizer.step()
    for name, parts in _parts(model).items():
        for i, part in enumerate(parts):
            torch.testing.assert_close(part, twins[f"{name}/{i}"].detach())
    for name, other in others.items():
        torch.testing.assert_close(model.get_parameter(name), other)


def _parts(model: nn.Module, gradients: bool = False) -> dict[str, tuple[torch.Tensor, ...]]:
    """The matrices of the model's blocks by parameter: q, k, v and gate, W1 apart; written out by hand for this model."""
    sizes = {"qkv.weight": (16, 8, 8), "fc1.weight": (24, 24), "out.weight": (16,), "fc2.weight": (16,)}
    found = {}
    for name, parameter in model.named_parameters():
        for ending, rows in sizes.items():
            if name.endswith(ending):
                found[name] = (parameter.grad if gradients else parameter.detach()).split(rows)  # type: ignore[union-attr]
    return found


def test_muon_finds_the_matrices_of_any_model_and_refuses_one_without() -> None:
    layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True) for _ in range(2))
    model = nn.ModuleDict({"embed": nn.Embedding(5, 8), "layers": layers, "head": nn.Linear(8, 5)})
    found = {name for name, p in model.named_parameters() if p in hidden_matrices(model)}
    assert found == {f"layers.{i}.{end}" for i in range(2) for end in
                     ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight")}  # fmt: skip
    assert len(hidden_matrices(model)[model.get_parameter("layers.0.self_attn.in_proj_weight")]) == 3
    with pytest.raises(ModelError, match="no matrices inside blocks"):
        make_optimizer(nn.Linear(3, 3), OptimConfig(name="muon"))


def test_muon_is_refused_where_matrices_are_cut() -> None:
    with pytest.raises(ConfigError, match="needs whole matrices"):
        Config(optim=OptimConfig(name="muon"), train=TrainConfig(parallel="fsdp"))


def test_a_schemes_rates_are_the_optimisers_groups() -> None:
    model = tiny.model("completep", (0, 4), width=512, ffn=24)
    config = OptimConfig(name="adamw", lr=0.1, eps=1e-6, weight_decay=0.2)
    optimizer = make_optimizer(model, config)
    set_learning_rate(optimizer, 0.05)
    names = {parameter: name for name, parameter in model.named_parameters()}
    wanted = rates(model)
    assert len({(rate.lr, rate.eps) for rate in wanted.values()}) > 2
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            rate = wanted[names.pop(parameter)]
            assert (group["lr"], group["eps"]) == (pytest.approx(0.05 * rate.lr), pytest.approx(1e-6 * rate.eps))
            assert group["weight_decay"] == pytest.approx(0.2 * rate.weight_decay if parameter.dim() > 1 else 0)
    assert not names


@pytest.mark.parametrize("name", ["adam", "adamw", "radam"])
def test_a_changed_beta2_keeps_the_estimate_of_the_squared_gradient(name: str) -> None:
    """Gradients are constant, so the estimate is their square under any β₂."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = make_optimizer(nn.ParameterList([weight]), OptimConfig(name=name, beta2=0.9999))
    for _ in range(20):
        weight.grad = torch.full((3,), 0.5)
        optimizer.step()
    rescale_squares_(optimizer, 0.9999, 0.98)
    torch.testing.assert_close(optimizer.state[weight]["exp_avg_sq"] / (1 - 0.98**20), torch.full((3,), 0.25))
