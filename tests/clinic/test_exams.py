# mypy: disable-error-code="union-attr, operator, index"
"""Every measure is its definition: a second, naive way to each number."""

import math
from typing import Any, cast

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor

import bathy
from bathy.clinic.exams import EXAMS
from bathy.clinic.exams.dependency import Chain, through
from bathy.clinic.exams.gradients import snapshot, updates
from bathy.clinic.exams.stability import random_change, step_change
from bathy.clinic.losses import default_loss, roll_source
from bathy.clinic.probe import examined
from bathy.clinic.readings import Reading, select, values
from bathy.core.residual import residuals
from bathy.errors import BatchError, ConfigError, ModelError

SCHEMES = list(bathy.SCHEMES)


def model_of(scheme: str, depths: tuple[int, int] = (3, 2), **changes: Any) -> bathy.Transformer:
    model = tiny.shake_(tiny.model(scheme, depths, **changes))
    return model.eval()


@torch.no_grad()
def by_hand(model: bathy.Transformer) -> list[tuple[str, Any, Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """(name, residual, real tokens of x, a, b, y, mask) of every site, by running the stacks one residual after the other."""
    result: list[Any] = []
    context: tuple[Tensor, ...] = ()
    for stack, tokens in zip(model.config.stacks, tiny.batch(model), strict=True):
        mask = tokens.ne(0)
        x = getattr(model, stack).first(model.embed(tokens, stack))
        for name, residual in residuals(getattr(model, stack)):
            own = (mask[:, None, None, :] if stack == "encoder" else None,)
            extra = {"self_attention": own, "cross_attention": context, "ffn": ()}[residual.f.kind]
            a = residual.branch(residual.f(residual.pre(x), *extra))
            b = a + x * getattr(residual.skip, "omega", 1.0)
            y = residual.post(b)
            result.append((f"{stack}.{name}", residual, x[mask], a[mask], b[mask], y[mask], mask))
            x = y
        context = (getattr(model, stack).final(x), mask[:, None, None, :])
    return result


@pytest.mark.parametrize("scheme", SCHEMES)
def test_activation_scales_are_population_variances_over_real_tokens(scheme: str) -> None:
    model = model_of(scheme)
    rows = bathy.examine(model, tiny.batch(model), exams=["activations"]).readings
    for name, _, x, a, b, y, _ in by_hand(model):
        found = {row.quantity: row.value for row in select(rows, site=name)}
        var = {"input": x, "branch": a, "sum": b, "output": y}
        expected = {f"{k}_variance": float(((v - v.mean()) ** 2).mean()) for k, v in var.items()}
        expected["branch_share"] = expected["branch_variance"] / expected["sum_variance"]
        expected["peak"] = float(torch.cat([a, b]).abs().max())
        for quantity, value in expected.items():
            assert math.isclose(found[quantity], value, rel_tol=1e-4, abs_tol=1e-9), (name, quantity)


@torch.no_grad()
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_parts_of_the_stream_add_up_to_it_and_beta_is_their_size(scheme: str) -> None:
    model = model_of(scheme)
    rows = bathy.examine(model, tiny.batch(model), exams=["dependency"]).readings
    parts: list[Tensor] = []
    for name, residual, x, a, b, y, _ in by_hand(model):
        first = residual.place.index == 1
        parts = [x, torch.zeros_like(x)] if first else parts  # the last is ν's
        parts = [*parts[:-1], torch.zeros_like(x), parts[-1]]
        omega = getattr(residual.skip, "omega", 1.0)
        passed = []
        for j, part in enumerate(parts):
            part = a if j == len(parts) - 2 else part * omega
            if residual.post.__class__.__name__ == "LayerNorm":
                sigma = (b.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
                part = (part - part.mean(-1, keepdim=True)) / sigma * residual.post.weight
                part = part + residual.post.bias if j == len(parts) - 1 else part
            passed.append(part)
        parts = passed
        torch.testing.assert_close(sum(parts), y, rtol=1e-3, atol=1e-4)
        expected = [float((part.var(correction=0) / y.var(correction=0)).sqrt()) for part in parts[:-1]]
        assert values(rows, "beta", site=name) == pytest.approx(expected, rel=2e-3, abs=1e-4)
        assert values(rows, "beta2_sum", site=name) == pytest.approx([sum(beta**2 for beta in expected)], rel=2e-3)


@pytest.mark.parametrize("scheme", ["post_ln", "admin", "pre_ln"])
def test_at_the_start_beta_follows_the_closed_form(scheme: str) -> None:
    """β²_ii = Var[a_i]/Var[b_i] exactly, and β²_ij = (1 − β²_ii) β²_{i-1,j} where branches do not correlate with the stream."""
    model = tiny.model(scheme, (4, 0), width=64, ffn=256, heads=4).eval()
    batch = (tiny.sentences(32, 20),)
    if scheme == "admin":
        bathy.stabilise_(model, batch)
    rows = bathy.examine(model, batch, exams=["activations", "dependency"]).readings
    for site in {row.site for row in rows if row.site}:
        index = select(rows, "branch_share", site=site)[0].index
        own = select(rows, "beta", site=site, j=index)[0].value ** 2
        assert own == pytest.approx(values(rows, "branch_share", site=site)[0], rel=0.05)
    last, before = ({row.j: row.value**2 for row in select(rows, "beta", index=i)} for i in (8, 7))
    for j in before:
        assert last[j] == pytest.approx((1 - last[8]) * before[j], rel=0.35)


@pytest.mark.parametrize("norm", ["layer", "rms", "scale"])
def test_a_norm_that_is_asked_answers_what_it_is(norm: str) -> None:
    post: Any = tiny.shake_(tiny.model("post_ln", (1, 0), norm=norm)).encoder.layers[0].ffn.post
    parts = torch.randn(3, 7, 16)
    y = post(parts.sum(0))
    carry, nu = through(post, parts.sum(0), y)
    torch.testing.assert_close(sum(carry(part) for part in parts) + nu, y)


def test_what_enters_between_two_sites_is_no_branchs_part() -> None:
    chain = Chain(torch.arange(5), 2)
    model = tiny.model("pre_ln", (1, 0))
    site = next(iter(bathy.clinic.probe.discover(model, None)))
    x, a, jump = torch.randn(3, 5, 16).unbind(0)
    for start in (x, x + a + jump):
        chain.hear("input", start)
        chain.hear("branch", a)
        chain.hear("sum", start + a)
        chain.advance(site, start + a)
    torch.testing.assert_close(chain.rest, jump)


def test_gradients_are_autograds() -> None:
    model = model_of("admin")
    batch = tiny.batch(model)
    rows = bathy.examine(model, batch, exams=["gradients"]).readings
    kept: dict[str, Tensor] = {}
    for name, residual in residuals(model):
        residual.register_forward_hook(lambda module, args, out, name=name: (out.retain_grad(), kept.update({name: out}))[0])
    loss = default_loss(model(*batch), batch)
    loss.backward()
    assert values(rows, "loss") == pytest.approx([loss.item()])
    for name, residual in residuals(model):
        mask = batch[0 if name.startswith("encoder") else 1].ne(0)
        grad = cast(Tensor, kept[name].grad)[mask]
        index = residual.place.index
        assert values(rows, "gradient", site=name, index=index) == pytest.approx([float(grad.square().sum().sqrt())], rel=1e-5)
        variance = float(((grad - grad.mean()) ** 2).mean())
        assert values(rows, "gradient_variance", site=name, index=index) == pytest.approx([variance], rel=1e-4)
        for matrix in residual.f.matrices():
            expected = float(cast(Tensor, matrix.grad).square().sum().sqrt())
            assert values(rows, "weight_gradient", site=name, role=matrix.role) == pytest.approx([expected], rel=1e-5)


def test_the_loss_scale_is_taken_out_of_the_gradients() -> None:
    model = model_of("post_ln")
    plain, scaled = (
        bathy.examine(model, tiny.batch(model), exams=["gradients"], loss_scale=scale).readings for scale in (1.0, 1024.0)
    )
    for quantity in ("gradient", "gradient_variance", "weight_gradient"):
        assert values(plain, quantity) == pytest.approx(values(scaled, quantity), rel=1e-4, abs=1e-12)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_changes_no_reading(reentrant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("post_ln")
    plain = bathy.examine(model, tiny.batch(model), exams=["activations", "gradients"])
    if reentrant:
        again = torch.utils.checkpoint.checkpoint
        monkeypatch.setattr("bathy.core.stack.checkpoint", lambda f, *args, **_: again(f, *args, use_reentrant=True))
    recomputed = bathy.examine(model.checkpoint_(), tiny.batch(model), exams=["activations", "gradients"])
    assert {row for row in plain.readings if row.quantity != "seconds"} == {
        row for row in recomputed.readings if row.quantity != "seconds"
    }


def change_by_hand(model: bathy.Transformer, other: bathy.Transformer, layer: int) -> float:
    sites = [next(y for name, *_, y, _ in by_hand(m) if f"encoder.layers.{layer - 1}.ffn" == name) for m in (model, other)]
    first, second = (F.layer_norm(y, y.shape[-1:]) for y in sites)
    return float((first - second).square().mean())


def test_the_random_change_is_that_of_a_perturbed_copy() -> None:
    model, other = tiny.model("pre_ln").eval(), tiny.model("pre_ln").eval()
    with examined(model, tiny.batch(model), seed=5) as subject:
        rows = random_change(subject, draws=1, delta=1e-2)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, residual in residuals(other):
            for weight in {matrix.parameter: None for matrix in residual.f.matrices()}:
                weight.add_(1e-2 * math.sqrt(128 / 16) * torch.randn(weight.shape, generator=generator).sign())
    for layer in (1, 2, 3):
        assert values(rows, stack="encoder", layer=layer) == pytest.approx([change_by_hand(model, other, layer)], rel=1e-4)


def test_the_step_change_is_that_of_one_step_of_torchs_adam() -> None:
    model, other = tiny.model("pre_ln").eval(), tiny.model("pre_ln").eval()
    with examined(model, tiny.batch(model)) as subject:
        rows = step_change(subject, lr=1e-3)
    optimizer = torch.optim.Adam(other.parameters(), lr=1e-3, eps=1e-8)
    default_loss(other(*tiny.batch(other)), tiny.batch(other)).backward()
    optimizer.step()
    for layer in (1, 2, 3):
        found = values(rows, "step_change", stack="encoder", layer=layer)
        assert found == pytest.approx([change_by_hand(model, other, layer)], rel=1e-3)


def test_updates_are_differences_of_weights() -> None:
    model = tiny.model("post_ln")
    with examined(model, tiny.batch(model)) as subject:
        before = snapshot(subject.sites)
        with torch.no_grad():
            model.encoder.layers[1].ffn.f.fc1.weight += 0.5
        rows = updates(subject, before)
    changed = {(row.site, row.role): row.value for row in rows if row.value}
    assert changed == {("encoder.layers.1.ffn", "fc1"): pytest.approx(0.5 * math.sqrt(16 * 24), rel=1e-5)}


def test_the_source_gap_is_the_loss_of_the_wrong_source() -> None:
    model = model_of("pre_ln")
    source, target = tiny.batch(model)
    rows = bathy.examine(model, (source, target), exams=["source"]).readings
    true, wrong = (default_loss(model(s, target), (s, target)).item() for s in (source, torch.cat([source[-1:], source[:-1]])))
    assert values(rows, "source_gap") == pytest.approx([wrong - true], abs=1e-6)
    memory = by_hand(model)[5][5]
    expected = float(((memory - memory.mean(0)) ** 2).mean() / (memory**2).mean())
    assert values(rows, "memory_variance") == pytest.approx([expected], rel=1e-4)
    assert values(rows, "uniform_loss") == pytest.approx([math.log(50)])


def test_a_source_is_rolled_where_there_is_one() -> None:
    a, b = torch.arange(6).reshape(3, 2), torch.ones(3, 2)
    rolled: Any = roll_source((a, b))
    assert torch.equal(rolled[0], a[[2, 0, 1]]) and torch.equal(rolled[1], b)
    rolled = roll_source({"input_ids": a, "decoder_input_ids": a, "labels": a})
    assert torch.equal(rolled["input_ids"], a[[2, 0, 1]]) and torch.equal(rolled["labels"], a)
    assert roll_source(a) is None and roll_source({"input_ids": a}) is None and roll_source((a[:1], b[:1])) is None


@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
def test_attention_is_heard_as_it_is_computed(depths: tuple[int, int]) -> None:
    model = model_of("post_ln", depths)
    rows = bathy.examine(model, tiny.batch(model), exams=["attention"]).readings
    site: Any = residuals(model)[0][1]
    stack = model.config.stacks[0]
    tokens = tiny.batch(model)[0]
    q, k, _ = (site.f.split(part) for part in site.f.qkv(model.embed(tokens, stack)))
    entropies, largest = [], 0.0
    for b in range(len(tokens)):
        length = int(tokens[b].ne(0).sum())
        for h in range(2):
            for t in range(length):
                row = (q[b, h, t] @ k[b, h, : t + 1 if stack == "decoder" else length].T / math.sqrt(8)).detach().double()
                largest = max(largest, float(row.abs().max()))
                if len(row) > 1:
                    entropies.append(float(-(row.softmax(0) * row.log_softmax(0)).sum() / math.log(len(row))))
    name = residuals(model)[0][0]
    assert values(rows, "attention_entropy", site=name) == pytest.approx([sum(entropies) / len(entropies)], rel=1e-4)
    assert values(rows, "largest_logit", site=name) == pytest.approx([largest], rel=1e-4)
    attentions = sum(residual.f.kind != "ffn" for _, residual in residuals(model))
    assert len(select(rows, "attention_entropy")) == attentions


def everything(model: bathy.Transformer) -> dict[str, Any]:
    """All that an examination must leave alone."""
    hooks = [
        (name, len(module._forward_hooks), len(module._forward_pre_hooks), module.training)
        for name, module in model.named_modules()
    ]
    state = {name: value.clone() for name, value in [*model.named_parameters(), *model.named_buffers()]}
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    return {"hooks": hooks, "state": state, "grads": grads, "rng": torch.get_rng_state()}


def test_examining_leaves_everything_as_it_was_also_when_the_body_raises() -> None:
    model = tiny.model("admin", dropout=0.1).train()
    model.encoder.eval()
    batch = tiny.batch(model)
    default_loss(model(*batch), batch).backward()
    before = everything(model)

    def raises(output: Any, batch: Any) -> Tensor:
        raise RuntimeError("no loss today")

    bathy.examine(model, batch)
    with pytest.raises(RuntimeError, match="no loss today"):
        bathy.examine(model, batch, raises)
    after = everything(model)
    assert before["hooks"] == after["hooks"] and torch.equal(before["rng"], after["rng"])
    for part in ("state", "grads"):
        assert all(
            torch.equal(before[part][name], after[part][name]) for name in before[part] if before[part][name] is not None
        )
        assert [v is None for v in before[part].values()] == [v is None for v in after[part].values()]


def test_exams_that_only_watch_share_one_pass() -> None:
    model = tiny.model("admin")
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    bathy.examine(model, tiny.batch(model), exams=["activations", "dependency", "gradients", "attention"])
    assert len(calls) == 1
    bathy.examine(model, tiny.batch(model))
    assert len(calls) == 1 + 1 + 2 + 1 + 1  # recorded, two random changes, one step, the wrong source


def test_what_is_measured_in_a_shared_pass_is_what_is_measured_alone() -> None:
    model = model_of("admin", dropout=0.1)
    together = [row for row in bathy.examine(model, tiny.batch(model)).readings if row.quantity != "seconds"]
    alone = [row for exam in EXAMS for row in bathy.examine(model, tiny.batch(model), exams=[exam]).readings]
    assert together == [row for row in alone if row.quantity != "seconds"]


def test_what_cannot_be_examined_is_an_error_of_one_line() -> None:
    model = tiny.model("admin")
    with pytest.raises(ConfigError, match="Did you mean gradients"):
        bathy.examine(model, tiny.batch(model), exams=["gradient"])
    with pytest.raises(ModelError, match="no residual connection"):
        bathy.examine(torch.nn.Linear(3, 3), torch.ones(2, 3))
    with pytest.raises(BatchError, match="loss="):
        default_loss(torch.ones(3), torch.ones(3))


def test_rows_carry_label_exam_and_time() -> None:
    model = tiny.model("pre_ln")
    found = bathy.examine(model, tiny.batch(model), name="mine", step=7)
    assert {(row.model, row.step) for row in found.readings} == {("mine", 7)}
    assert {row.exam for row in select(found.readings, "seconds")} == set(found.origin["exams"])
    assert all(isinstance(row, Reading) and row.exam for row in found.readings)
