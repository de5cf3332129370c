import math
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import torch.nn.functional as F

import bathy
from bathy.clinic.findings import Finding
from bathy.clinic.monitor import level
from bathy.clinic.readings import Reading, read, select, values
from bathy.clinic.sample import held, whole
from bathy.core.residual import Matrix
from bathy.errors import ConfigError


def train(
    monitored: bool,
    out: Path | None = None,
    *,
    checkpointing: bool = False,
    accumulate: int = 1,
    dtype: Any = None,
    **settings: Any,
) -> tuple[list[float], bathy.Monitor]:
    """Losses of a short run with dropout, so that any number drawn or changed shows."""
    model = tiny.model("post_ln", dropout=0.2, attention_dropout=0.1).checkpoint_(checkpointing)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    monitor = bathy.Monitor(model, out, optimizer=optimizer, **{"every": 3} | settings)
    losses = []
    with monitor if monitored else torch.enable_grad():
        for _ in range(9):
            for _ in range(accumulate):
                source = torch.randint(4, 50, (4, 7))
                with torch.autocast("cpu", dtype, enabled=dtype is not None):
                    logits = model(source, source.flip(1))
                loss = F.cross_entropy(logits.float().flatten(0, 1), source.flatten()) / accumulate
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if monitored:
                monitor.step(loss)
    return losses, monitor


CASES: list[dict[str, Any]] = [{}, {"checkpointing": True}, {"accumulate": 2}, {"dtype": torch.bfloat16}]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_loss_curve_is_bit_identical_with_and_without_the_monitor(case: dict[str, Any]) -> None:
    torch.manual_seed(0)
    plain, _ = train(False, **case)
    torch.manual_seed(0)
    watched, monitor = train(True, **case)
    assert plain == watched and sorted({row.step for row in monitor.readings}) == [1, 2, 3, 6, 9]


def test_a_recomputed_forward_pass_is_not_counted_twice() -> None:
    torch.manual_seed(0)
    _, plain = train(True)
    torch.manual_seed(0)
    _, recomputed = train(True, checkpointing=True)
    assert plain.readings == recomputed.readings


def sampled(model: torch.nn.Module, batch: Any) -> list[Reading]:
    """What the monitor reads in one update."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    with bathy.Monitor(model, optimizer=optimizer, batch=batch) as monitor:
        bathy.clinic.losses.default_loss(model(*batch), batch).backward()
        optimizer.step()
        monitor.step()
    return monitor.readings


def test_the_influence_of_the_source_is_gradient_times_spread_at_the_ends_of_the_stacks() -> None:
    model, batch = tiny.model("pre_ln"), (torch.randint(4, 50, (4, 7)), torch.randint(4, 50, (4, 5)))
    ends: list[torch.Tensor] = []
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda module, args, x: ends.append(x))
        for name in ("encoder.layers.2.ffn", "decoder.layers.1.ffn")
    ]
    gradients = torch.autograd.grad(bathy.clinic.losses.default_loss(model(*batch), batch), ends)
    for hook in hooks:
        hook.remove()
    source, target = (
        g.norm() * (x.var(correction=0) * (x - x.mean((0, 1))).square().mean() / x.square().mean()).sqrt()
        for g, x in zip(gradients, ends, strict=True)
    )
    assert values(sampled(model, batch), "source_influence") == pytest.approx([(source / target).item()], rel=1e-4)


def test_a_decoder_that_reads_nothing_of_its_source_has_no_influence_of_it_and_a_frozen_encoder_is_not_judged() -> None:
    model = tiny.model("pre_ln")
    for layer in range(2):
        torch.nn.init.zeros_(model.get_parameter(f"decoder.layers.{layer}.cross_attention.f.out.weight"))
    assert values(sampled(model, tiny.batch(model)), "source_influence") == [0.0]
    model.requires_grad_(False).decoder.requires_grad_(True)
    assert values(sampled(model, tiny.batch(model)), "source_influence") == []


def test_live_readings_are_those_of_an_examination_and_of_the_optimizer(tmp_path: Path) -> None:
    model = tiny.model("admin")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = tiny.batch(model)
    expected = bathy.examine(model, batch, exams=["activations", "gradients"]).readings
    with bathy.Monitor(model, tmp_path / "r.jsonl", optimizer=optimizer) as monitor:
        loss = bathy.clinic.losses.default_loss(model(*batch), batch)
        loss.backward()
        optimizer.step()
        monitor.step(loss)
    rows = monitor.readings
    for quantity in ("branch_share", "token_variance", "weight_gradient", "loss"):
        assert values(rows, quantity) == pytest.approx(values(expected, quantity), rel=1e-5)
    updates = [row for row in select(rows, "weight_update") if row.stack]
    pairs = zip(updates, select(rows, "weight_gradient"), strict=True)
    assert all(math.isclose(update.value, 0.1 * gradient.value, rel_tol=1e-2) for update, gradient in pairs)
    assert values(rows, "lr") == [0.1] and read(tmp_path / "r.jsonl")[0] == rows


def test_hooks_are_gone_after_the_block_also_when_it_raises() -> None:
    model = tiny.model("post_ln")
    with pytest.raises(RuntimeError), bathy.Monitor(model, every=1):
        raise RuntimeError
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_update_that_the_scaler_skipped_is_counted_and_the_next_one_sampled() -> None:
    model = tiny.model("post_ln")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with bathy.Monitor(model, optimizer=optimizer, every=100) as monitor:
        for step in range(1, 8):
            if step != 5:
                optimizer.step()
            monitor.step(1.0, loss_scale=128.0)
    assert [row.step for row in select(monitor.readings, "skipped")] == [1, 2, 4, 6]
    assert values(monitor.readings, "skipped") == [0, 0, 0, 1] and set(values(monitor.readings, "loss_scale")) == {128}


def test_a_large_matrix_is_followed_in_evenly_spaced_rows() -> None:
    linear = torch.nn.Linear(300, 900)
    for matrix in (Matrix("q", linear, slice(0, 300)), Matrix("fc1", linear)):
        part = held(matrix)
        assert part is not None and part.numel() <= 2**16 + 300
        assert float(whole(matrix, part)) == pytest.approx(matrix.weight.norm().item(), rel=0.02)


def test_an_interval_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="every is 0"):
        bathy.Monitor(tiny.model(), every=0)


def hot_run(**settings: Any) -> bathy.Monitor:
    """Thirty updates of a model whose shortcuts one update has all but closed, so that its branches take over."""
    model = tiny.model("pre_ln", (1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    batch = tiny.batch(model)
    with bathy.Monitor(model, optimizer=optimizer, every=8, **settings) as monitor:
        for step in range(1, 25):
            loss = bathy.clinic.losses.default_loss(model(*batch), batch)
            loss.backward()
            optimizer.step()
            monitor.step(loss + (9.0 if step == 24 else 0.0))
    return monitor


def test_a_warning_names_the_update_and_the_first_thing_to_do_and_a_callback_gets_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard: list[Finding] = []
    quiet = hot_run(on_warning=heard.append)
    assert heard == quiet.findings and [finding.name for finding in heard] == ["spike"] and capsys.readouterr().err == ""
    hot_run()
    said = " ".join(capsys.readouterr().err.split())
    assert "update 24" in said and "First: Look at the batch of that update." in said
    assert hot_run(without=["spike"]).findings == []
    with pytest.raises(ConfigError, match="Did you mean spike"):
        bathy.Monitor(tiny.model(), without=["spikes"])


def test_a_rise_of_the_loss_is_compared_with_the_lowest_level_also_after_resuming() -> None:
    losses = [2.0 + 0.1 * (i % 2) for i in range(40)] + [3.0 + 0.1 * (i % 2) for i in range(24)]
    first = bathy.Monitor(tiny.model(), every=8, on_warning=lambda _: None)
    with first:
        for loss in losses[:32]:
            first.step(loss)
    second = bathy.Monitor(tiny.model(), every=8, start=32, on_warning=lambda _: None)
    with second:
        second.load_state_dict(first.state_dict())
        for loss in losses[32:]:
            second.step(loss)
    assert not first.findings and "rise" in {finding.name for finding in second.findings}
    assert level([1.0] * 15) is None and level([5.0] + [1.0, 3.0] * 8) == (2.0, 0.25)
    assert level([1.0] * 15 + [9.0]) == pytest.approx((1.0, 8 * math.sqrt(15) / 16 / 4))  # one spike moves the error only


def test_what_cannot_be_watched_is_listed_with_the_reason_and_the_findings_it_weakens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Hidden(torch.nn.Module):
        """Two residual connections whose additions and norms are functions."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = F.layer_norm(x + F.dropout(layer(x).relu(), 0.0), (8,))
            return x

    model, batch = Hidden(), torch.randn(4, 5, 8)
    with bathy.Monitor(model, batch=batch) as monitor:
        model(batch).mean().backward()
        monitor.step(1.0)
    assert monitor.unwatched and all(each.reason for each in monitor.unwatched)
    assert "weaker: " in capsys.readouterr().err
    found = bathy.examine(model, batch)
    assert found.origin["unwatched"] and "amplification" in found.origin["weakened"]
    assert "unwatched" in [finding.name for finding in found.findings]
