# mypy: disable-error-code="union-attr, operator, index"
import copy
import math
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import bathy
from bathy.admin.remedies import Profile, profile, stabilise_
from bathy.errors import BatchError, CheckpointError, SchemeError
from bathy.sites.site import declared_sites


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in [*model.named_parameters(), *model.named_buffers()]}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
def test_admin_with_omega_one_is_post_ln_exactly(depths: tuple[int, int]) -> None:
    admin, plain = tiny.model("admin", depths), tiny.model("post_ln", depths)
    assert torch.equal(admin(*tiny.batch(admin)), plain(*tiny.batch(plain)))


def naive_omegas(model: bathy.Transformer, batch: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """ω by running the stacks by hand, one residual after the other, with numpy-like statistics."""
    omegas: dict[str, float] = {}
    memory: tuple[torch.Tensor, ...] = ()
    mask: torch.Tensor | None = None
    for name, tokens in zip(model.config.stacks, batch, strict=True):
        x = model.embed(tokens, name)
        real = tokens.ne(model.config.pad)
        own = real[:, None, None, :] if name == "encoder" else None
        square = 1.0
        for number, layer in enumerate(getattr(model, name).layers):
            for kind, residual in layer.named_children():
                context = (own,) if kind == "self_attention" else (*memory, mask) if kind == "cross_attention" else ()
                a = residual.f(x, *context)
                omegas[f"{name}.layers.{number}.{kind}"] = math.sqrt(square)
                b = math.sqrt(square) * x + a
                square = square * x[real].var(correction=0).item() + a[real].var(correction=0).item()
                x = residual.post(b)
        memory, mask = (x,), real[:, None, None, :]
    return omegas


@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
@pytest.mark.parametrize("scheme", ["admin", "admin_rescaled"])
def test_a_profile_is_its_definition(depths: tuple[int, int], scheme: str) -> None:
    model = tiny.model(scheme, depths).double()
    batch = tiny.batch(model)
    with torch.no_grad():
        expected = naive_omegas(model, batch)
    assert profile(model, batch).omega == pytest.approx(expected, rel=1e-5)


def test_omega_squared_telescopes_to_the_variances_before_it() -> None:
    rows = profile(tiny.model(depths=(6, 0)), (tiny.sentences(),)).sites
    for i, row in enumerate(rows[1:], 1):
        total = rows[0].input_variance + sum(before.branch_variance for before in rows[:i])
        assert row.omega**2 == pytest.approx(total, rel=1e-3)


@pytest.mark.parametrize("batch_kind", ["tuple", "list", "dict"])
def test_profiling_leaves_everything_as_it_was(batch_kind: str) -> None:
    model = tiny.shake_(tiny.model(dropout=0.3, learn_first_omega=True)).eval()
    model.decoder.train()
    source, target = tiny.batch(model)
    kinds: dict[str, Any] = {
        "tuple": (source, target),
        "list": [source, target],
        "dict": {"source": source, "target_in": target},
    }
    batch = kinds[batch_kind]
    before, modes, random = state(model), [module.training for module in model.modules()], torch.get_rng_state()
    profile(model, batch)
    assert same(before, state(model))
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(random, torch.get_rng_state())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_stabilising_changes_omega_alone() -> None:
    model = tiny.model()
    before = state(model)
    result = stabilise_(model, tiny.batch(model))
    changed = {name for name, value in state(model).items() if not torch.equal(value, before[name])}
    assert changed == {f"{site.name}.skip.omega" for site in result.sites if not site.name.endswith("layers.0.self_attention")}
    assert all(
        (torch.as_tensor(site.omega) == result.omega[site.name]).all() for site in declared_sites(model) if site.index > 1
    )


@pytest.mark.parametrize("learn_first", [False, True])
def test_the_first_sub_layer_keeps_omega_one(learn_first: bool) -> None:
    model = tiny.model(learn_first_omega=learn_first)
    stabilise_(model, tiny.batch(model))
    for site in declared_sites(model):
        if site.index == 1:
            assert isinstance(site.omega, torch.nn.Parameter) == learn_first
            assert torch.as_tensor(site.omega).eq(1).all()


def test_profiles_of_padded_and_unpadded_batches_agree() -> None:
    model = tiny.model()
    source, target = tiny.batch(model)
    wide = torch.nn.functional.pad(source, (0, 9)), torch.nn.functional.pad(target, (0, 5))
    assert profile(model, (source, target)).difference(profile(model, wide)) < 1e-5


def test_dropout_is_on_while_profiling() -> None:
    model = tiny.model(dropout=0.5).eval()
    batch = tiny.batch(model)
    plain = tiny.model(dropout=0.0)
    assert profile(model, batch).difference(profile(plain, batch)) > 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_get_nearly_the_same_omega(dtype: torch.dtype) -> None:
    model = tiny.model(depths=(6, 6))
    batch = tiny.batch(model, rows=16)
    half = copy.deepcopy(model).to(dtype)
    assert profile(model, batch).difference(profile(half, batch)) < 0.03
    stabilise_(half, batch)
    assert half.encoder.layers[0].ffn.skip.omega.dtype == dtype


def test_profiling_works_under_activation_checkpointing() -> None:
    model = tiny.model()
    batch = tiny.batch(model)
    assert profile(model, batch) == profile(copy.deepcopy(model).checkpoint_(), batch)


def test_at_most_the_given_tokens_are_used() -> None:
    model = tiny.model(depths=(2, 0))
    tokens = tiny.sentences(40, 20)
    result = profile(model, tokens, tokens=100)
    assert 80 < result.tokens["encoder"] <= 100
    rows = int((tokens.ne(0).sum(1).cumsum(0) <= 100).sum())
    assert result == profile(model, tokens[:rows])


def test_measured_beta_follows_the_prediction_at_eighteen_layers() -> None:
    model = tiny.model(depths=(18, 18), width=128, ffn=256, heads=4)
    batch = tiny.sentences(16, 24), tiny.sentences(16, 24, seed=3)
    rows = {row.name: row for row in stabilise_(model, batch).sites}
    shares: dict[str, float] = {}
    for site in declared_sites(model):
        real = batch[site.stack == "decoder"].ne(0)
        branch: list[torch.Tensor] = []

        def leave(a: torch.Tensor, kept: list[torch.Tensor] = branch, real: torch.Tensor = real) -> None:
            kept.append(a[real].var(correction=0))

        def add(b: torch.Tensor, kept: list[torch.Tensor] = branch, real: torch.Tensor = real, name: str = site.name) -> None:
            shares[name] = (kept[-1] / b[real].var(correction=0)).item()

        site.on("branch", leave)
        site.on("sum", add)
    with torch.no_grad():
        model(*batch)
    for stack in ("encoder", "decoder"):
        chain = [row for row in rows.values() if row.stack == stack]
        predicted = [
            row.branch_variance / (chain[0].input_variance + sum(before.branch_variance for before in chain[: i + 1]))
            for i, row in enumerate(chain)
        ]
        measured = [shares[row.name] for row in chain]
        error = [abs(m / p - 1) for m, p in zip(measured, predicted, strict=True)]
        assert sum(error) / len(error) < 0.05
        assert max(error) < 0.2


def test_one_pass_and_all_ones_profiling_agree_within_ten_per_cent() -> None:
    model = tiny.model(depths=(18, 18), width=128, ffn=256, heads=4)
    batch = tiny.sentences(16, 24), tiny.sentences(16, 24, seed=3)
    plain = tiny.model("post_ln", (18, 18), width=128, ffn=256, heads=4)
    square: dict[str, float] = {}
    expected: dict[str, float] = {}
    for site in declared_sites(plain):
        real = batch[site.stack == "decoder"].ne(0)

        def enter(x: torch.Tensor, site: Any = site, real: torch.Tensor = real) -> None:
            square.setdefault(site.stack, x[real].var(correction=0).item())
            expected[site.name] = math.sqrt(square[site.stack]) if site.index > 1 else 1.0

        def leave(a: torch.Tensor, site: Any = site, real: torch.Tensor = real) -> None:
            square[site.stack] += a[real].var(correction=0).item()

        site.on("input", enter)
        site.on("branch", leave)
    with torch.no_grad():
        plain(*batch)
    differences = [abs(expected[name] / omega - 1) for name, omega in profile(model, batch).omega.items()]
    assert 0 < max(differences) < 0.12


def test_few_tokens_give_nearly_the_same_omega() -> None:
    model = tiny.model(depths=(18, 0), width=64, ffn=128, vocab=500)
    tokens = tiny.sentences(600, 30, vocab=500)
    few, many = profile(model, tokens, tokens=512), profile(model, tokens, tokens=8192)
    assert many.tokens["encoder"] > 8000
    assert few.difference(many) < 0.05


@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
def test_admin_rescaled_computes_what_admin_computes_at_the_start(depths: tuple[int, int]) -> None:
    admin, rescaled = tiny.model("admin", depths).double(), tiny.model("admin_rescaled", depths).double()
    batch = tiny.batch(admin)
    assert stabilise_(admin, batch).sites == stabilise_(rescaled, batch).sites
    torch.testing.assert_close(rescaled(*batch), admin(*batch), rtol=1e-10, atol=1e-10)
    assert not any("omega" in name for name in rescaled.state_dict())


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    model = tiny.model()
    result = profile(model, tiny.batch(model))
    result.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == result


def test_a_profile_prints_as_a_table_of_its_sites() -> None:
    text = str(profile(tiny.model(), tiny.batch(tiny.model())))
    assert all(
        name in text for name in ("Var[x]", "Var[a]", "ω", "β²", "encoder.layers.2.ffn", "decoder.layers.1.cross_attention")
    )


def test_what_cannot_be_profiled_is_one_clear_line(tmp_path: Path) -> None:
    model = tiny.model()
    with pytest.raises(SchemeError, match="no Admin sites"):
        profile(tiny.model("rezero"), tiny.batch(model))
    with pytest.raises(BatchError, match="no real token for the decoder"):
        profile(model, (tiny.sentences(), torch.zeros(4, 5, dtype=torch.long)))
    with pytest.raises(BatchError, match="no real token"):
        profile(model, (torch.zeros(0, 5, dtype=torch.long),) * 2)
    model.encoder.layers[1].ffn.f.fc2.weight.data.fill_(torch.inf)
    with pytest.raises(BatchError, match=r"encoder\.layers\.1\.ffn"):
        profile(model, tiny.batch(model))
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not a profile"):
        Profile.load(tmp_path / "p.json")
