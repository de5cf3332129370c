"""An audit names the scheme from behaviour alone, and what was changed on purpose."""

import json
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import tiny
import torch
from torch import nn

import bathy
from bathy.clinic.audit.deviation import WHY
from bathy.clinic.audit.signature import factors, gammas
from bathy.core.schemes import SCHEMES
from bathy.errors import ConfigError
from bathy.lab.bench.audit.mutations import MUTATIONS, build, mistaken

SAME = {"admin_constant_n": "post_ln"}
"""Schemes that are another by a different name."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_recognised_and_has_no_deviation(scheme: str) -> None:
    model, batch = build(scheme, (8, 0), seed=5)
    found = bathy.audit(model, batch)
    assert (found.scheme, found.deviations) == (SAME.get(scheme, scheme), [])


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_found_and_named(name: str) -> None:
    schemes = ["deepnorm", "pre_ln", "post_ln"]
    results = [found for scheme in schemes if (found := mistaken(scheme, name, (8, 0))) is not None]
    assert results and all(found & MUTATIONS[name][1] for found in results)


def test_factors_are_those_of_the_sum() -> None:
    x, a = torch.randn(50, 16), torch.randn(50, 16)
    found = factors(x, a, 2.5 * x + a)
    assert found["skip"] == pytest.approx(2.5, rel=1e-5) and found["spread"] < 1e-4
    assert factors(x, a, torch.linspace(1, 2, 16) * x + a)["spread"] > 0.2


def test_gamma_is_asked_of_the_norm_and_not_read_from_its_parameter() -> None:
    class PlusOneNorm(nn.RMSNorm):
        """A norm that stores γ − 1."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.rms_norm(x, (8,)) * (1 + self.weight)

    norm = PlusOneNorm(8)
    with torch.no_grad():
        norm.weight.zero_()
    assert gammas(nn.Sequential(norm, nn.LayerNorm(8))) == pytest.approx({"0": 1.0, "1": 1.0}, rel=1e-4)


def test_gamma_of_a_norm_is_the_same_with_an_activation_in_it() -> None:
    class NormAct(nn.LayerNorm):
        """A norm that ends in a ReLU, as convolutional networks have."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).relu()

    assert gammas(nn.Sequential(NormAct(8), nn.LayerNorm(8))) == pytest.approx({"0": 1.0, "1": 1.0}, rel=1e-4)


class ConvBlock(nn.Module):
    """Two convolutions beside a shortcut, which goes through a third where the width changes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm1, self.norm2 = PictureNorm(outputs), PictureNorm(outputs)
        self.down = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.down(x) + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


class PictureNorm(nn.BatchNorm2d):
    """A norm that takes pictures only, and says so as timm's do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.ndim == 4
        return super().forward(x)


@pytest.mark.parametrize("widths", [[8, 8, 8, 8, 8], [8, 8, 8, 16, 16]])
def test_a_network_of_convolutions_is_audited_without_an_alarm(widths: list[int]) -> None:
    torch.manual_seed(0)
    blocks = [ConvBlock(a, b) for a, b in pairwise(widths)]
    model = nn.Sequential(nn.Conv2d(3, 8, 1), *blocks, nn.Flatten(), nn.Linear(64 * widths[-1], 5))
    assert bathy.audit(model, torch.randn(4, 3, 8, 8)).deviations == []


@pytest.mark.parametrize(
    ("widths", "zeros", "alarm"),
    [
        ([8, 8, 8, 8, 8], (0, 1, 2, 3), set()),
        ([8, 8, 8, 8, 8], (1, 2, 3), set()),
        ([8, 8, 16, 16, 32], (0, 1, 2, 3), set()),
        ([8, 8, 8, 8, 8], (2,), {"norm_gamma_zero"}),
    ],
)
def test_branches_that_start_at_zero_are_a_design_and_a_single_one_is_not(
    widths: list[int], zeros: tuple[int, ...], alarm: set[str]
) -> None:
    torch.manual_seed(0)
    stages = {f"stage{i}": ConvBlock(a, b) for i, (a, b) in enumerate(pairwise(widths))}
    for i in zeros:
        nn.init.zeros_(stages[f"stage{i}"].norm2.weight)
    model = nn.Sequential(OrderedDict(stem=nn.Conv2d(3, 8, 1), **stages, flat=nn.Flatten(), head=nn.Linear(64 * widths[-1], 5)))
    assert {each.name for each in bathy.audit(model, torch.randn(4, 3, 8, 8)).deviations} == alarm


class GatedNorm(nn.RMSNorm):
    """A norm that needs a gate, which it does not demand."""

    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x) * gate.sigmoid()  # type: ignore[union-attr]


def test_a_norm_that_needs_more_than_a_stream_is_read() -> None:
    assert gammas(nn.Sequential(GatedNorm(8))) == {"0": 1.0}


class Conformer(nn.Module):
    """A Conformer's block without its convolution: half a step, attention, half a step, a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.steps = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        for linear in (self.steps[0][2], self.steps[1][2]):  # type: ignore[index]
            nn.init.normal_(linear.weight, 0, 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.steps[0](self.norms[0](x))
        normed = self.norms[1](x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return self.norms[3](x + 0.5 * self.steps[1](self.norms[2](x)))


@pytest.mark.parametrize("size", [1e-5, 1e-3, 1.0])
def test_a_stream_that_starts_small_is_no_other_factor_on_the_shortcut(size: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Conformer(32) for _ in range(6)), nn.Linear(32, 5))
    assert bathy.audit(model, size * torch.randn(2, 5, 32)).deviations == []


class Recurrent(nn.Module):
    """A recurrent layer beside a shortcut, as codecs of sound have between convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        for parameter in self.lstm.parameters():
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.lstm(x)[0]


def test_a_few_matrices_are_no_scheme() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), Recurrent(64), nn.Linear(64, 5))
    assert bathy.audit(model, torch.randn(2, 20, 8)).deviations == []


def test_cloned_layers_of_torchs_own_encoder_are_found() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 4)
    found = bathy.audit(model, torch.randn(3, 7, 32))
    assert found.scheme == "post_ln" and {each.name for each in found.deviations} == {"cloned_layers"}


class GatedStep(nn.Module):
    """A gated feed-forward whose gate starts at zero, in every layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, 2 * width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        nn.init.zeros_(self.gate.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        return x + self.down(self.gate(normed).sigmoid() * self.up(normed))


def test_gates_that_start_at_zero_are_no_copies() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(GatedStep(32) for _ in range(4)), nn.LayerNorm(32), nn.Linear(32, 5))
    assert bathy.audit(model, torch.randn(3, 7, 32)).deviations == []


class DeepNormLayer(nn.Module):
    """Somebody's DeepNorm: its α times a factor, and β to another power."""

    def __init__(self, width: int, layers: int, times: float, power: float) -> None:
        super().__init__()
        self.alpha = times * (2 * layers) ** 0.25
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for linear in (self.q, self.k, self.v, self.out, self.fc1, self.fc2):
            scaled = linear not in (self.q, self.k)
            nn.init.xavier_normal_(linear.weight, (8 * layers) ** power if scaled else 1.0)
            nn.init.zeros_(linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended = nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        x = self.norm1(self.alpha * x + self.out(attended))
        return self.norm2(self.alpha * x + self.fc2(self.fc1(x).relu()))


@pytest.mark.parametrize(
    ("times", "power", "deviation"),
    [(1.0, -0.25, None), (2.0, -0.25, "shortcut_constant"), (1.0, 0.25, "gain_inverted"), (1.0, 0.0, "gain")],
)
def test_a_hand_written_deepnorm_is_recognised_and_its_mistake_named(times: float, power: float, deviation: str | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40, 64), *(DeepNormLayer(64, 6, times, power) for _ in range(6)), nn.Linear(64, 40))
    found = bathy.audit(model, torch.randint(40, (3, 9)))
    names = {each.name for each in found.deviations}
    assert found.scheme == "deepnorm" and (deviation in names if deviation else not names)


def test_a_model_of_no_scheme_is_compared_with_its_own_layers() -> None:
    class Odd(nn.Module):
        """Layers that halve their shortcut, one of which triples it."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
            self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
                x = norm((3.0 if i == 3 else 0.5) * x + layer(x).relu())
            return x

    found = bathy.audit(Odd(), torch.randn(4, 6, 16))
    assert any(each.name.startswith("shortcut") for each in found.deviations)


def test_auditing_leaves_the_model_as_it_was_and_prints_a_table(tmp_path: Path) -> None:
    model = tiny.model("deepnorm").train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    found = bathy.audit(model, tiny.batch(model))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items()) and model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert "deepnorm" in str(found) and "shortcut" in str(found)
    found.save(tmp_path / "audit.json")
    assert json.loads((tmp_path / "audit.json").read_text())["scheme"] == found.scheme


def test_deviations_become_one_finding_of_the_clinics_report() -> None:
    model, batch = build("pre_ln", (4, 0))
    assert bathy.audit(model, batch).findings("mine") == ()
    with torch.no_grad():
        model.get_submodule("encoder.layers.2.ffn.pre").weight.zero_()  # type: ignore[operator]
    (finding,) = bathy.audit(model, batch).findings("mine")
    assert "norm_gamma_zero: encoder.layers.2.ffn.pre" in finding.cause and finding.model == "mine"
    assert replace(bathy.examine(model, batch, exams=["activations"]), known=(finding,)).findings.count(finding) == 1


def test_every_deviation_says_why_it_matters_and_what_to_do() -> None:
    assert all(why.endswith(".") and advice.endswith(".") for why, advice in WHY.values())
    model, batch = build("pre_ln", (8, 0))
    with pytest.raises(ConfigError, match="Did you mean bias"):
        bathy.audit(model, batch, without=["biass"])
