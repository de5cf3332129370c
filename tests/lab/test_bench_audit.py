"""What the benchmark of audits says of a model that is left out, of one that is audited, and of a fault of the audit itself."""

from typing import Any

import pytest
import torch
from torch import nn

from bathy.errors import ModelError
from bathy.lab.bench.audit import sound
from bathy.lab.bench.audit.mutations import build
from bathy.lab.bench.audit.sound import audited, false_alarms
from bathy.lab.bench.shrink import Excluded, by_heads, by_name, filled, shrunk

BERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 12, "vocab_size": 30522}


def raising(error: Exception) -> Any:
    def raises(*_: object) -> Any:
        raise error

    return raises


@pytest.mark.parametrize(
    ("error", "reason"),
    [(Excluded("has 9 million parameters"), "has 9 million parameters"), (KeyError("x"), "cannot be built: KeyError: 'x'")],
)
def test_a_model_that_does_not_build_is_left_out_with_the_reason(error: Exception, reason: str) -> None:
    row = audited("mine", raising(error))
    assert (row["left_out"], row["failed"], row["alarms"]) == (reason, "", [])


def test_a_fault_of_the_audit_is_no_reason_to_leave_a_model_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = (nn.Identity(), torch.zeros(1))
    monkeypatch.setattr(sound, "audit", raising(ZeroDivisionError("division by zero")))
    row = audited("mine", lambda: model)
    assert (row["left_out"], row["failed"]) == ("", "ZeroDivisionError: division by zero")
    monkeypatch.setattr(sound, "audit", raising(ModelError("no residual connection")))
    row = audited("mine", lambda: model)
    assert (row["left_out"], row["failed"]) == ("refused: no residual connection", "")


def test_a_model_that_takes_too_long_is_left_out_although_its_library_catches_every_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def endless() -> Any:
        while True:
            try:
                sum(range(10**5))
            except Exception:
                continue

    monkeypatch.setattr(sound, "SECONDS", 0.1)
    assert audited("mine", endless)["left_out"] == "takes more than 0.1 s"


def test_tried_is_audited_and_left_out_library_by_library(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [
        ("pre_ln encoder-only", lambda: build("pre_ln", (4, 0))),
        ("timm vit", raising(Excluded("is large"))),
        ("transformers bert", lambda: build("post_ln", (4, 0))),
    ]
    monkeypatch.setattr(sound, "_sound", lambda quick: iter(models))
    found = false_alarms(None, False)
    assert (found["tried"], found["audited"], found["alarms"], found["left_out"]) == (3, 2, 0, {"timm vit": "is large"})
    assert [(row["tried"], row["audited"]) for row in found["by_library"]] == [(1, 1), (1, 1), (1, 0)]


def test_a_config_made_small_by_its_heads_keeps_the_width_of_a_head() -> None:
    small = shrunk(BERT, 6, by_heads)
    assert small == {
        "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512, "num_hidden_layers": 6, "vocab_size": 99,
    }  # fmt: skip
    assert small["hidden_size"] / small["num_attention_heads"] == BERT["hidden_size"] / BERT["num_attention_heads"]


def test_each_way_to_make_a_config_small_goes_into_its_parts() -> None:
    config = {"text_config": {"model_type": "bert", "head_dim": None, **BERT}, "per_layer_config": {"1": {}, "11": {}}}
    assert shrunk(config, 6, by_name)["text_config"]["hidden_size"] == 32
    assert shrunk(config, 6, filled)["text_config"]["head_dim"] == 8
    assert shrunk(config, 6, filled)["per_layer_config"] == {"1": {}}
    assert shrunk(config, None, filled)["text_config"]["num_hidden_layers"] == 12
