"""A forecast: what is rehearsed is what training does, the model is left alone, and costs are as stated."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import nn

import bathy
from bathy.clinic.losses import default_loss
from bathy.clinic.odds import Odds, features, fitted
from bathy.clinic.predict import LOOKS, optimizer_for
from bathy.clinic.readings import select
from bathy.clinic.rehearsal import Point, Recipe, StandIn, objective_from
from bathy.clinic.search import largest_rate, monotone
from bathy.errors import BatchError, ConfigError


def recipe(model: nn.Module, batches: list[Any], optimizer: Any = "SGD") -> Recipe:
    return Recipe(batches, objective_from(None), optimizer_for(model, optimizer), lambda item: item)


def batches(model: bathy.Transformer, count: int = 3) -> list[Any]:
    return [tuple(tiny.sentences(4, 9 - 2 * i, seed=7 * n + i) for i in range(len(model.config.stacks))) for n in range(count)]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adafactor", "LBFGS_"])
def test_a_rehearsal_is_training_at_that_rate(optimizer: str) -> None:
    if optimizer.endswith("_"):
        with pytest.raises(ConfigError, match="LBFGS_"):
            optimizer_for(nn.Linear(1, 1), optimizer)
        return
    model = tiny.model("post_ln")
    data = batches(model)
    found = StandIn(model, recipe(model, data, optimizer)).rehearse(0.05, 4)
    twin = tiny.model("post_ln").train()
    own = getattr(torch.optim, optimizer)(twin.parameters(), lr=0.05)
    losses = []
    for step in range(5):
        batch = data[step % 3]
        loss = default_loss(twin(*batch), batch)
        losses.append(loss.item())
        own.zero_grad(), loss.backward(), own.step()
    assert found.losses == pytest.approx(losses, rel=1e-5)


def test_the_readings_of_step_k_are_of_the_model_after_k_updates() -> None:
    model = tiny.model("post_ln")
    data = batches(model, 1)
    found = StandIn(model, recipe(model, data)).rehearse(0.1, 2)
    before = bathy.examine(model, data[0], exams=["activations"]).readings
    rows = select(found.readings, "branch_share", step=0)
    assert [row.value for row in rows] == pytest.approx([row.value for row in select(before, "branch_share")], rel=1e-4)
    assert {row.step for row in found.readings} == {0, 1, 2}


def test_one_copy_serves_every_rate() -> None:
    model = tiny.model("pre_ln", dropout=0.2)
    stand_in = StandIn(model, recipe(model, batches(model)))
    first, _, again = (stand_in.rehearse(lr, 3) for lr in (0.1, 5.0, 0.1))
    assert first.losses == again.losses and first.readings == again.readings


@pytest.mark.parametrize("look", LOOKS)
def test_predicting_leaves_model_gradients_and_random_state_as_they_were(look: Any) -> None:
    model = tiny.model("post_ln", (2, 0), dropout=0.1)
    batch = tiny.batch(model)
    default_loss(model(*batch), batch).backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    hooks, random = [len(m._forward_hooks) for m in model.modules()], torch.get_rng_state()
    bathy.predict(model, batch, lr=0.1, look=look, remedies=["admin"])
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    after = [p.grad for p in model.parameters()]
    torch.testing.assert_close(after, grads, rtol=0, atol=0)
    assert hooks == [len(m._forward_hooks) for m in model.modules()] and torch.equal(random, torch.get_rng_state())
    assert model.training


def test_costs_are_counted_and_within_what_is_promised() -> None:
    model = tiny.model("post_ln", (2, 0))
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    for look, steps, forwards in (("one look", 4, 15), ("rehearsal", 20, 70), ("largest rate", 80, 280)):
        calls.clear()
        found = bathy.predict(model, tiny.batch(model), lr=1e-2, look=look, remedies=["admin"])  # type: ignore[arg-type]
        for outlook in (found.as_is, *found.remedies.values()):
            assert 0 < outlook.steps <= steps and outlook.forwards <= forwards
        assert len(calls) <= found.as_is.forwards + found.remedies["admin"].forwards + 4


def test_a_rate_that_destroys_the_model_is_more_likely_to_fail_and_the_largest_rate_is_between() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(30, 16), nn.TransformerEncoder(layer, 3), nn.Linear(16, 30))
    data = [torch.randint(1, 30, (4, 8)) for _ in range(4)]
    calm, wild = (bathy.predict(model, data[0], lr=lr, batches=data, look="rehearsal", remedies=[]) for lr in (1e-6, 0.3))
    assert calm.failure < 0.5 < wild.failure
    found = bathy.predict(model, data[0], lr=1e-2, batches=iter(data), remedies=["admin"])
    assert found.largest_rate is not None and 1e-6 < found.largest_rate < 0.3
    low, high = found.as_is.interval
    assert low <= found.largest_rate <= high
    assert "; up to " in str(found) and "; with admin " in str(found)


class Regression(nn.Module):
    """A model without residual connections or tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def test_a_model_without_residual_connections_is_forecast_from_its_output() -> None:
    x = torch.randn(32, 4)
    loss = lambda y, batch: F.mse_loss(y, batch[:, :2])  # noqa: E731
    found = bathy.predict(Regression(), x, loss, lr=1e-3, remedies=["admin"], look="rehearsal")
    assert 0 <= found.failure <= 1 and "admin" in found.refused
    assert not math.isnan(found.as_is.features["tokens"])


class Vision(nn.Module):
    """Images cut into patches, a small encoder over them, and one class for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True), 2)
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(self.patches(images).flatten(2).mT).mean(1)))


def test_a_vision_model_is_forecast_and_its_buffers_are_left_alone() -> None:
    model, items = Vision(), [(torch.randn(6, 3, 8, 8), torch.randint(5, (6,))) for _ in range(2)]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {"objective": lambda m, item: F.cross_entropy(m(item[0]), item[1]), "inputs": lambda item: item[0]}
    found = bathy.predict(model, items[0][0], lr=1e-3, batches=items, remedies=[], look="one look", **settings)  # type: ignore[arg-type]
    assert found.as_is.features["tokens"] < 0 and "it " in str(found)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    with pytest.raises(BatchError, match="pass loss="):  # what it is trained for is not guessed
        bathy.predict(model, items[0][0], look="one look", remedies=[])


def test_an_optimiser_of_the_model_is_copied_group_by_group() -> None:
    model = tiny.model("post_ln")
    first, *others = model.parameters()
    given = torch.optim.AdamW([{"params": [first], "lr": 1e-4}, {"params": others, "weight_decay": 0.3}], lr=1e-3)
    made = optimizer_for(model, given)(tiny.model("post_ln"), 2e-2)
    assert [(round(g["lr"], 6), g["weight_decay"], len(g["params"])) for g in made.param_groups] == [
        (2e-3, 0.01, 1),
        (2e-2, 0.3, len(others)),
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "lr is 0"),
        ({"lr": math.nan}, "positive"),
        ({"warmup": -1}, "warmup is -1"),
        ({"look": "glance"}, "there is no look"),
        ({"remedies": ["admln"]}, "Did you mean admin"),
        ({"optimizer": "Adamm"}, "Did you mean adam"),
        ({"batches": []}, "no batches"),
        ({"optimizer": "LBFGS"}, "cannot train Transformer.*closure"),
        ({"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)}, "no parameter of this model"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(settings: dict[str, Any], message: str) -> None:
    model = tiny.model()
    with pytest.raises(ConfigError, match=message):
        bathy.predict(model, tiny.batch(model), **settings)


def test_a_loss_that_is_not_finite_counts_as_the_worst_readings() -> None:
    model = tiny.model("pre_ln")
    found = StandIn(model, recipe(model, batches(model))).rehearse(1e30, 4)
    worst = features(found.points, 4, 0)
    assert len(found.losses) < 5 and worst["tokens"] == -12 and fitted("one look").failure(worst) > 0.5


def points(tokens: list[float], gradients: list[float], given: float = 1.0) -> list[Point]:
    stacks = [{"encoder": [1.0, value, value, given], "decoder": [2.0, 0.5, 0.5, 1.0]} for value in tokens]
    return [Point(1.0, own, gradient=norm) for own, norm in zip(stacks, gradients, strict=True)]


def test_tokens_are_compared_with_what_the_stack_is_given_and_the_worst_stack_counts() -> None:
    variances = [0.4, 0.1, 0.04, 0.004, 0.3]
    found = features(points(variances, [1.0] * 5, given=0.8), 4, 0)
    assert found["tokens"] == pytest.approx(statistics.median(math.log10(v / 0.8) for v in variances[1:]))
    scaled = features(points([0.01 * v for v in variances], [1.0] * 5, given=0.008), 4, 0)
    assert scaled == pytest.approx(found)  # tokens that are alike from the start are not brought together by the stack
    assert features(points([0.1, 0.8, 0.8, 0.8, 0.8], [1.0] * 5), 4, 0)["tokens"] == pytest.approx(math.log10(0.5))
    outputs = [Point(1.0, {}, output=value) for value in (0.4, 0.04, 0.04, 0.04, 0.04)]
    assert features(outputs, 4, 0)["tokens"] == pytest.approx(-1)


@pytest.mark.parametrize(
    ("norms", "jump"),
    [
        ([1.0, 10.0, 1.0, 10.0, 1e9], 1.0),  # the last belongs to no update
        ([8.0, 4.0, 2.0, 1.0, 0.5], math.log10(2)),
        ([1.0, 1e9, 1.0, 1.0, 1.0], 2.0),
        ([1.0, math.inf, 1.0, 1.0, 1.0], 2.0),
        ([math.nan] * 5, 2.0),
        ([0.0] * 5, 0.0),
    ],
)
def test_a_gradient_is_read_by_how_far_it_jumps_from_update_to_update(norms: list[float], jump: float) -> None:
    assert features(points([1.0] * 5, norms), 4, 0)["gradient"] == pytest.approx(jump)


@pytest.mark.parametrize(("lr", "border"), [(1e10, 3e-2), (1e-12, 3e-6), (1e-3, 3e-2)])
def test_the_search_comes_back_from_rates_far_outside(lr: float, border: float) -> None:
    asked: list[float] = []

    def failure(rate: float) -> float:
        asked.append(rate)
        return 1 / (1 + (border / rate) ** 2)

    found = largest_rate(lr, failure, 6)
    assert len(set(asked)) <= 6 and found.rate == pytest.approx(border, rel=0.05) and found.low < border < found.high


def test_probabilities_are_made_to_rise_with_the_rate() -> None:
    told = monotone({1e-2: 0.2, 1e-4: 0.1, 1e-3: 0.8, 1e-1: 0.9})
    assert told == pytest.approx({1e-4: 0.1, 1e-3: 0.5, 1e-2: 0.5, 1e-1: 0.9})  # 0.8 and 0.2 have opposite log odds
    rising = {1e-4: 0.1, 1e-3: 0.3, 1e-2: 0.999}
    assert monotone(rising) == pytest.approx(rising)


def test_a_sparse_gradient_is_rehearsed() -> None:
    model = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Linear(8, 20))
    found = bathy.predict(model, torch.randint(1, 20, (4, 6)), optimizer="SGD", look="one look", remedies=[])
    assert 0 < found.failure < 1


def test_the_odds_are_a_logistic() -> None:
    odds = Odds(8, {"tokens": -2.0, "warmup": 0.5}, 1.0)
    assert odds.failure({"tokens": -1.0, "warmup": 2.0, "rise": 9.0}) == pytest.approx(1 / (1 + math.exp(-4.0)))


def test_a_forecast_is_saved_as_json(tmp_path: Path) -> None:
    model = tiny.model("post_ln", (2, 0))
    found = bathy.predict(model, tiny.batch(model), lr=1e-3, look="one look")
    found.save(tmp_path / "forecast.json")
    assert json.loads((tmp_path / "forecast.json").read_text())["as_is"]["failure"] == pytest.approx(found.failure)
