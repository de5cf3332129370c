"""A life with other tools: wrapping comes after ω, and whoever saves ω is told where it would be lost."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from test_hooks import encoder, tokens, training
from torch import nn
from zoo import ZOO

import bathy
from bathy.errors import CheckpointError, ModelError


@pytest.fixture
def one_rank(tmp_path: Path):  # type: ignore[no-untyped-def]
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_wrapped_models_are_refused_with_the_right_order() -> None:
    from torch.distributed.fsdp import fully_shard

    wrapped = nn.parallel.DistributedDataParallel(encoder())
    with pytest.raises(ModelError, match=r"wrapped in DistributedDataParallel.*stabilise_\(model, batch\); then Distributed"):
        bathy.stabilise_(wrapped, tokens())
    sharded: Any = fully_shard(encoder())
    with pytest.raises(ModelError, match=r"sharded already.*then fully_shard"):
        bathy.stabilise_(sharded, tokens())
    inside = nn.Sequential(wrapped)
    with pytest.raises(ModelError, match=r"model\.module"):
        bathy.stabilise_(inside, tokens())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_scripted_and_empty_models_are_refused_with_the_way_out() -> None:
    with pytest.raises(ModelError, match=r"is compiled.*_orig_mod.*then torch\.compile"):
        bathy.stabilise_(torch.compile(encoder()), tokens())  # type: ignore[arg-type]
    compiled = encoder()
    compiled.layers[1].compile()
    with pytest.raises(ModelError, match=r"layers\.1 is compiled"):
        bathy.find_sites(compiled, tokens())
    with pytest.raises(ModelError, match="meta device"):
        bathy.find_sites(encoder().to("meta"), tokens())


def test_saving_by_transformers_warns_and_bathy_keeps_omega(tmp_path: Path) -> None:
    model: Any = ZOO["BERT"].build()
    batch = ZOO["BERT"].batch()
    bathy.stabilise_(model, batch)
    with pytest.warns(UserWarning, match="from_pretrained drops ω"):
        model.save_pretrained(tmp_path / "theirs")
    bathy.save(model, tmp_path / "ours")
    expected = model.eval()(**batch).logits
    for more in ({}, {"batch": batch}):
        fresh: Any = ZOO["BERT"].build()
        with torch.no_grad():
            for parameter in fresh.parameters():
                parameter.add_(1)
        assert torch.equal(bathy.load(fresh, tmp_path / "ours", **more).eval()(**batch).logits, expected)
    assert torch.allclose(bathy.fold(fresh).eval()(**batch).logits, expected, atol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bathy.fold(fresh).save_pretrained(tmp_path / "folded")


def test_loading_what_does_not_fit_is_one_clear_line(tmp_path: Path) -> None:
    model = encoder()
    bathy.stabilise_(model, tokens())
    bathy.save(model, tmp_path)
    with pytest.raises(ModelError, match=r"no place for the ω of layers\.2"):
        bathy.load(encoder(2), tmp_path)
    with pytest.raises(CheckpointError, match=r"no model that bathy\.save wrote"):
        bathy.load(encoder(), tmp_path / "nothing")


def test_a_frozen_omega_is_told_of() -> None:
    model = encoder()
    bathy.stabilise_(model, tokens())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.warns(UserWarning, match="is frozen"):
        model.train()(tokens())


def test_peft_before_stabilising_trains_omega() -> None:
    peft = pytest.importorskip("peft")
    base, batch = ZOO["BERT"].build(), ZOO["BERT"].batch()
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["query", "value"]))
    bathy.stabilise_(model, batch)
    model.train()(**batch).loss.backward()
    grads = [p.grad for name, p in model.named_parameters() if "bathy_omega" in name]
    assert grads
    assert all(grad is not None and grad.abs().sum() > 0 for grad in grads)


def test_an_error_leaves_the_model_as_it_was() -> None:
    class Twice(nn.Module):
        """A second reader of the stream that no matrix stands before."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = encoder(4).layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    model, x = Twice(), tokens()
    model.layers[2].norm1.register_parameter("odd", nn.Parameter(torch.ones(3)))
    before = copy.deepcopy(model.state_dict())
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
    with pytest.raises(ModelError):
        bathy.stabilise_(model, x, "admin_rescaled")
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()] == hooks


def test_a_stabilised_model_trains_after_a_round_through_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_model, save_model

    model, x = encoder(), tokens()
    bathy.stabilise_(model, x)
    training(model, x, 2)
    save_model(model, str(tmp_path / "model.safetensors"))
    fresh = encoder()
    bathy.stabilise_(fresh, x)
    load_model(fresh, tmp_path / "model.safetensors")
    assert torch.equal(fresh.eval()(x), model.eval()(x))


def test_a_constant_omega_is_in_the_saved_state_and_no_plain_model_loads_it_in_silence() -> None:
    model, x = encoder(), tokens()
    bathy.stabilise_(model, x, "admin_constant")
    fresh = encoder()
    with pytest.raises(RuntimeError, match=r"Unexpected key.*bathy_omega_3"):
        fresh.load_state_dict(model.state_dict())
    bathy.stabilise_(fresh, x, "deepnorm")
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.eval()(x), model.eval()(x))
    assert list(bathy.fold(model).state_dict()) == list(encoder().state_dict())


def test_omega_is_loaded_beside_a_norm_without_parameters(tmp_path: Path) -> None:
    def build() -> Any:
        model = encoder()
        for layer in model.layers:
            layer.norm1, layer.norm2 = (nn.LayerNorm(layer.norm1.normalized_shape, elementwise_affine=False) for _ in range(2))
        return model

    model, x = build(), tokens()
    bathy.stabilise_(model, x)
    bathy.save(model, tmp_path)
    assert torch.equal(bathy.load(build(), tmp_path).eval()(x), model.eval()(x))


@pytest.mark.filterwarnings("ignore")
def test_accelerate_saves_and_loads_omega(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator, x = accelerate.Accelerator(cpu=True), tokens()

    def prepared() -> tuple[Any, Any]:
        model = encoder()
        bathy.stabilise_(model, x)
        return accelerator.prepare(model, torch.optim.Adam(model.parameters(), 1e-2))

    model, optimiser = prepared()
    for _ in range(2):
        accelerator.backward(model(x).square().mean())
        optimiser.step()
    assert float(model.layers[1].norm1.bathy_omega_3.detach().std()) > 0
    accelerator.save_state(str(tmp_path / "state"))
    accelerator._models.clear()
    accelerator._optimizers.clear()
    other, _ = prepared()
    accelerator.load_state(str(tmp_path / "state"))
    assert torch.equal(other.eval()(x), model.eval()(x))
    accelerator.save_model(model, str(tmp_path / "model"))
    fresh = encoder()
    bathy.stabilise_(fresh, x)
    accelerate.load_checkpoint_in_model(fresh, str(tmp_path / "model"), strict=True)
    assert torch.equal(fresh.eval()(x), model.eval()(x))


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_checkpoint_has_omega_and_training_resumes_with_it(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    x = tokens()

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, stabilised: bool = True) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = encoder()
            if stabilised:
                bathy.stabilise_(self.model, x)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self.model(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-2)

    def fit(epochs: int, resume: Path | None = None) -> Any:
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(), torch.utils.data.DataLoader([x[0], x[1]], batch_size=2), ckpt_path=resume)  # type: ignore[arg-type]
        return trainer

    saved = tmp_path / "one.ckpt"
    first = fit(1)
    first.save_checkpoint(saved)
    loaded = Module.load_from_checkpoint(saved)
    assert torch.equal(loaded.model.eval()(x), first.model.model.eval()(x))
    torch.testing.assert_close(fit(2, saved).model.model.eval()(x), fit(2).model.model.eval()(x))
    with pytest.raises(RuntimeError, match="bathy_omega_3"):
        Module.load_from_checkpoint(saved, stabilised=False)
