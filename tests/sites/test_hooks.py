"""ω hooked into other people's models: same function, same training, and it goes wherever the model goes."""

import copy
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bathy
from bathy.admin.fold import outputs
from bathy.errors import BatchError, ModelError, SchemeError
from bathy.sites.batch import call
from bathy.sites.hooks import hooked_sites

WIDTH = 16


def encoder(depth: int = 3, dropout: float = 0.0, norm_first: bool = False) -> nn.TransformerEncoder:
    """A stock encoder whose layers do not start alike."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, depth, enable_nested_tensor=not norm_first)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    return model


def tokens(rows: int = 4) -> Tensor:
    return torch.randn(rows, 6, WIDTH, generator=torch.Generator().manual_seed(5))


def with_ones(model: nn.Module, batch: Any) -> nn.Module:
    """The model with ω = 1 hooked in at every site."""
    hooked = copy.deepcopy(model)
    for site in bathy.find_sites(hooked, batch):
        if not site.obstacle:
            site.attach_()
    return hooked


def training(model: nn.Module, batch: Any, steps: int = 8) -> list[float]:
    """Losses of a few updates, dropout seeded."""
    torch.manual_seed(3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(steps):
        loss = (outputs_with_grad(model, batch) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def outputs_with_grad(model: nn.Module, batch: Any) -> Tensor:
    return call(model, batch)


def test_omega_one_leaves_outputs_and_gradients_bit_identical() -> None:
    model, x = encoder(), tokens()
    hooked = with_ones(model, x)
    plain_out, hooked_out = model(x), hooked(x)
    assert torch.equal(plain_out, hooked_out)
    for out in (plain_out, hooked_out):
        out.square().sum().backward()
    gradients: dict[str, Any] = dict(hooked.named_parameters())
    assert all(torch.equal(cast(Tensor, value.grad), gradients[name].grad) for name, value in model.named_parameters())
    assert len(gradients) == len(dict(model.named_parameters())) + 6


@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
def test_hooks_on_our_post_ln_are_our_admin(depths: tuple[int, int]) -> None:
    """The same profile, the same function and the same training as the model built as admin."""
    hooked, admin = tiny.model("post_ln", depths, dropout=0.1), tiny.model("admin", depths, dropout=0.1)
    batch = tiny.batch(hooked)
    torch.manual_seed(7)
    profiles = [bathy.stabilise_(hooked, batch)]
    torch.manual_seed(7)
    profiles.append(bathy.stabilise_(admin, batch))
    assert profiles[0].difference(profiles[1]) < 1e-5
    torch.testing.assert_close(hooked.eval()(*batch), admin.eval()(*batch), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(training(hooked.train(), batch), training(admin.train(), batch), rtol=1e-4, atol=0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fused_fast_path_of_evaluation_does_not_bypass_omega() -> None:
    model, x = encoder().eval(), tokens()
    bathy.stabilise_(model, x)
    padding = torch.zeros(4, 6, dtype=torch.bool)
    padding[1, 3:] = True
    by_hand = x
    for number, layer in enumerate(model.layers):
        a = layer.self_attn(by_hand, by_hand, by_hand, key_padding_mask=padding, need_weights=False)[0]
        omega = getattr(layer.norm1, f"bathy_omega_{2 * number + 1}", 1.0)
        by_hand = layer.norm1.forward(omega * by_hand + a)
        a = layer.linear2(torch.relu(layer.linear1(by_hand)))
        by_hand = layer.norm2.forward(getattr(layer.norm2, f"bathy_omega_{2 * number + 2}") * by_hand + a)
    with torch.inference_mode():
        real = ~padding
        torch.testing.assert_close(model(x, src_key_padding_mask=padding)[real], by_hand[real], rtol=1e-4, atol=1e-5)


def test_keys_stay_and_omega_stands_beside_them() -> None:
    model, x = encoder(), tokens()
    before = list(model.state_dict())
    bathy.stabilise_(model, x)
    added = [name for name in model.state_dict() if name not in before]
    assert [name for name in model.state_dict() if name in before] == before
    assert added == [f"layers.{i // 2}.norm{i % 2 + 1}.bathy_omega_{i + 1}" for i in range(1, 6)]


def carried(how: str, model: nn.Module, tmp_path: Path) -> nn.Module:
    """The model after a way of carrying it."""
    if how == "deepcopy":
        return copy.deepcopy(model)
    if how == "state_dict":
        torch.save(model.state_dict(), tmp_path / "model.pt")
        fresh = encoder()
        bathy.stabilise_(fresh, tokens())
        fresh.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
        return fresh
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("how", ["deepcopy", "state_dict", "pickle"])
def test_omega_goes_where_the_model_goes(how: str, tmp_path: Path) -> None:
    model, x = encoder(), tokens()
    bathy.stabilise_(model, x)
    training(model, x, 2)
    other = carried(how, model, tmp_path)
    assert torch.equal(model.eval()(x), other.eval()(x))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    assert not torch.equal(model(x), other(x))
    training(other.train(), x, 1)
    assert torch.isfinite(bathy.fold(other)(x)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_omega_follows_the_dtype(dtype: torch.dtype) -> None:
    model, x = encoder(), tokens()
    bathy.stabilise_(model, x)
    out = model.to(dtype)(x.to(dtype))
    assert out.dtype == dtype
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert bathy.fold(model)(x.to(dtype)).dtype == dtype


def test_autocast_and_a_half_precision_model_can_be_stabilised() -> None:
    x = tokens()
    model, half = encoder(), encoder().to(torch.bfloat16)
    bathy.stabilise_(model, x)
    bathy.stabilise_(half, x.to(torch.bfloat16))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x).square().mean()
    loss.backward()
    assert model.layers[1].norm1.bathy_omega_3.grad.isfinite().all()
    assert half.layers[1].norm1.bathy_omega_3.dtype == torch.bfloat16


class Checkpointed(nn.Module):
    def __init__(self, encoder: nn.TransformerEncoder) -> None:
        super().__init__()
        self.layers, self.how = encoder.layers, ""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if not self.how else checkpoint(layer, x, use_reentrant=self.how == "reentrant")
        return x


@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
def test_activation_checkpointing_gives_the_same_gradients(how: str) -> None:
    model, x = Checkpointed(encoder()), tokens().requires_grad_()
    bathy.stabilise_(model, x.detach())
    gradients = []
    for model.how in ("", how):
        model.zero_grad()
        model(x).square().sum().backward()
        gradients.append([cast(Tensor, parameter.grad).clone() for parameter in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


def test_a_compiled_model_computes_the_same() -> None:
    model, x = encoder(2), tokens()
    bathy.stabilise_(model, x)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    compiled(x).sum().backward()
    assert model.layers[1].norm1.bathy_omega_3.grad.abs().sum() > 0


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_sharded_and_replicated_models_train_as_the_plain_one() -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    x = tokens()
    plain = encoder()
    bathy.stabilise_(plain, x)
    replicated, sharded = DistributedDataParallel(copy.deepcopy(plain)), copy.deepcopy(plain)
    for layer in sharded.layers:
        fully_shard(layer)
    fully_shard(sharded)
    expected = training(plain, x)
    torch.testing.assert_close(training(replicated, x), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(training(sharded, x), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("scheme", ["admin", "admin_rescaled", "admin_constant", "deepnorm"])
def test_folding_gives_the_original_architecture_and_the_same_function(scheme: str) -> None:
    model, x = encoder(dropout=0.1), tokens()
    keys = list(model.state_dict())
    bathy.stabilise_(model, x, scheme)
    training(model, x)
    folded = bathy.fold(model)
    assert list(folded.state_dict()) == keys
    assert hooked_sites(folded) is None
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in folded.modules())
    torch.testing.assert_close(folded.eval()(x), model.eval()(x), rtol=0, atol=1e-4)


def test_rescaled_is_admin_at_the_start_without_a_parameter_more() -> None:
    admin, x = encoder(), tokens()
    rescaled = copy.deepcopy(admin)
    bathy.stabilise_(admin, x)
    bathy.stabilise_(rescaled, x, "admin_rescaled")
    torch.testing.assert_close(rescaled(x), admin(x), rtol=0, atol=1e-5)
    assert hooked_sites(rescaled) is None


def test_hooks_on_our_post_ln_fold_into_post_ln() -> None:
    model = tiny.model("post_ln")
    batch = tiny.batch(model)
    bathy.stabilise_(model, batch)
    folded = bathy.fold(model.eval())
    assert isinstance(folded, bathy.Transformer)
    torch.testing.assert_close(folded(*batch), model(*batch), rtol=0, atol=1e-4)


class Tapped(Checkpointed):
    """Also returns the stream after its first layer: a consumer that folding cannot rescale."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        first = self.layers[0](x)
        return first, super().forward(x)


def test_folding_is_refused_where_the_stream_is_read_elsewhere() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = encoder().layers

        def forward(self, x: Tensor) -> Tensor:
            first = self.layers[0](x)
            return self.layers[2](self.layers[1](first)) + first.mean()

    model, x = Pooled(), tokens()
    with pytest.raises(ModelError, match="also read by mean"):
        bathy.stabilise_(model, x, "admin_rescaled")
    bathy.stabilise_(model, x)
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn.*also read by mean"):
        bathy.fold(model)


def test_what_cannot_be_rescaled_is_left_untouched() -> None:
    model, x = encoder(), tokens()
    model.layers[1].norm2 = nn.LayerNorm(WIDTH, elementwise_affine=False)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ModelError, match=r"norm after layers\.1\.ffn has no γ"):
        bathy.stabilise_(model, x, "admin_rescaled")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert list(model.state_dict()) == list(before)


def test_a_trained_model_is_refused_unless_forced() -> None:
    model, x = encoder(), tokens()
    training(model, x, 1)
    with pytest.raises(ModelError, match=r"layers\.0\.norm1\.weight is trained.*force=True"):
        bathy.stabilise_(model, x)
    assert bathy.stabilise_(model, x, force=True).sites


def test_stabilising_twice_is_stabilising_once() -> None:
    model, x = encoder(), tokens()
    first = bathy.stabilise_(model, x)
    assert bathy.stabilise_(model, x) == first
    assert sum(len(module._forward_pre_hooks) for module in model.modules()) == 10


def test_identical_layers_are_warned_of() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)
    with pytest.warns(UserWarning, match="identical weights"):
        bathy.stabilise_(nn.TransformerEncoder(layer, 2), tokens())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bathy.stabilise_(encoder(), tokens())


def test_a_pre_ln_model_gets_scaled_init() -> None:
    model, x = encoder(24, norm_first=True), tokens()
    before = copy.deepcopy(model)
    result = bathy.stabilise_(model, x)
    assert "the remedy is scaled_init" in result.notes[0]
    for layer, old in zip(model.layers, before.layers, strict=True):
        torch.testing.assert_close(layer.linear2.weight, old.linear2.weight / 48**0.5)
        torch.testing.assert_close(layer.self_attn.out_proj.weight, old.self_attn.out_proj.weight / 48**0.5)
        assert torch.equal(layer.linear1.weight, old.linear1.weight)


def test_where_depth_is_not_the_problem_little_changes() -> None:
    model, x = encoder(), tokens()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.1)
    result = bathy.stabilise_(model, x)
    assert "depth is not its problem and little changes" in result.notes[0]
    assert max(result.omega.values()) < 1.1 * torch.var(x, correction=0).sqrt()


def test_padding_is_left_out_by_mask_else_by_the_batch_else_not_at_all() -> None:
    with pytest.warns(UserWarning, match="batch_first was not True"):
        model, x = nn.Transformer(WIDTH, 2, 2, 2, 32, 0.0), tokens(6).transpose(0, 1)  # time first
    padding = torch.zeros(6, 6, dtype=torch.bool)
    padding[:, 4:] = True
    batch = {"src": x, "tgt": x, "src_key_padding_mask": padding, "tgt_key_padding_mask": padding}
    by_batch = bathy.profile(model, batch)
    assert by_batch.padding == {"encoder": "src_key_padding_mask", "decoder": "tgt_key_padding_mask"}
    assert by_batch.tokens == {"encoder": 24, "decoder": 24}
    given = bathy.profile(model, {"src": x, "tgt": x}, mask={"encoder": ~padding})
    assert given.padding == {"encoder": "mask", "decoder": "all positions"}
    assert given.tokens == {"encoder": 24, "decoder": 36}
    assert given.sites[0].input_variance == pytest.approx(float(torch.var(x[:4], correction=0)), rel=1e-5)
    assert "24 encoder tokens (by src_key_padding_mask)" in str(by_batch)


class Repeated(nn.Module):
    """One layer used four times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = encoder(1).layers[0]

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.layer(x)
        return x


def test_a_reused_layer_shares_one_omega_and_does_not_fold() -> None:
    model, x = Repeated(), tokens()
    result = bathy.stabilise_(model, x)
    assert [site.calls for site in result.sites] == [4, 4]
    assert [name for name, _ in model.named_parameters() if "omega" in name] == [
        "layer.norm1.bathy_omega_1",
        "layer.norm2.bathy_omega_2",
    ]
    assert 1 < result.sites[0].omega < result.sites[1].omega
    training(model, x, 1)
    with pytest.raises(ModelError, match="runs 4 times on the same weights"):
        bathy.fold(model)


def test_profiling_leaves_another_model_as_it_was() -> None:
    model, x = encoder(dropout=0.1).eval(), tokens()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    bathy.profile(model, x)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m.training or m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_an_omega_is_what_the_formula_gives_by_hand() -> None:
    """ω_i² = Var[x_0] + Σ Var[a_j], against a pass written out with the ω that were set."""
    model, x = encoder().train(), 2 * tokens()
    result = bathy.stabilise_(model, x)
    square, stream = 1.0, x
    for number, layer in enumerate(model.layers):
        branches: tuple[Any, ...] = (lambda y, m=layer: m.self_attn(y, y, y, need_weights=False)[0], layer._ff_block)
        for norm, branch in zip((layer.norm1, layer.norm2), branches, strict=True):
            index = 2 * number + (norm is layer.norm2)
            assert result.sites[index].omega == pytest.approx(square**0.5, rel=1e-4)
            a = branch(stream)
            square = square * stream.var(correction=0).item() + a.var(correction=0).item()
            stream = norm.forward(result.sites[index].omega * stream + a)


def test_what_cannot_be_done_is_one_clear_line() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for linear in self.linears:
                x = nn.functional.layer_norm(x + linear(x), (WIDTH,))
            return x

    with pytest.raises(ModelError, match="its norm is a function call"):
        bathy.stabilise_(Functional(), tokens())
    with pytest.raises(SchemeError, match=r"Did you mean admin\?"):
        bathy.stabilise_(encoder(), tokens(), "admn")
    with pytest.raises(SchemeError, match="cannot make it deepnorm"):
        model = tiny.model()
        bathy.stabilise_(model, tiny.batch(model), "deepnorm")
    with pytest.raises(BatchError, match=r"mask is \(2, 3\), which fits no stack"):
        bathy.profile(encoder(), tokens(), mask=torch.ones(2, 3))
    assert bathy.stabilise_(Functional(), tokens(), "scaled_init").sites


def test_outputs_are_compared_over_all_that_a_model_gives() -> None:
    model, x = Tapped(encoder()), tokens()
    assert [part.shape for part in outputs(model, x)] == [x.shape, x.shape]
