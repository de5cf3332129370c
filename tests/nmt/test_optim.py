"""Optimisers: what is decayed, and states by name."""

from copy import deepcopy

import pytest
import tiny
import torch
from torch import nn

from bathy.errors import CheckpointError
from bathy.nmt.config import OptimConfig
from bathy.nmt.optim import gradient_norm, load_optimizer_state_, make_optimizer, optimizer_state


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


@pytest.mark.parametrize("name", ["radam", "adamw", "sgd"])
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
