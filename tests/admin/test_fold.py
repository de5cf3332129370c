# mypy: disable-error-code="union-attr, operator, index"
import pytest
import tiny
import torch

from bathy import SCHEMES, fold
from bathy.errors import ModelError, SchemeError

DEEP = {"encoder-decoder": (18, 18), "encoder-only": (18, 0), "decoder-only": (0, 18)}


@pytest.mark.parametrize("learn_first", [False, True])
@pytest.mark.parametrize("depths", DEEP.values())
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_folding_admin_keeps_the_function(depths: tuple[int, int], dtype: torch.dtype, error: float, learn_first: bool) -> None:
    model = tiny.shake_(tiny.model("admin", depths, width=32, learn_first_omega=learn_first)).to(dtype).eval()
    batch = tiny.batch(model)
    expected = model(*batch)
    assert (fold(model)(*batch) - expected).abs().max() < error
    assert torch.equal(model(*batch), expected)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
@pytest.mark.parametrize("name", tiny.FOLDING)
def test_what_folds_becomes_plain_post_ln_with_the_same_function(name: str, depths: tuple[int, int], norm: str) -> None:
    model = tiny.shake_(tiny.model(name, depths, norm=norm)).double().eval()
    batch = tiny.batch(model)
    folded = fold(model)
    # A scalar on the first sub-layer is exact up to the norm's eps of 1e-5.
    torch.testing.assert_close(folded(*batch), model(*batch), rtol=0, atol=1e-4)
    assert {folded.config.scheme_name(stack) for stack in folded.config.stacks} == {"post_ln"}
    assert folded.state_dict().keys() == tiny.model("post_ln", depths, norm=norm).state_dict().keys()


def test_scalars_fold_exactly_where_eps_does_not_matter() -> None:
    model = tiny.shake_(tiny.model("deepnorm")).double().eval()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 0.0
    folded = fold(model)
    for module in folded.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 0.0
    torch.testing.assert_close(folded(*tiny.batch(model)), model(*tiny.batch(model)), rtol=0, atol=1e-12)


def test_tied_embeddings_stay_tied_unless_the_first_omega_is_learned() -> None:
    assert list(fold(tiny.model()).embeddings) == ["shared"]
    untied = fold(tiny.shake_(tiny.model(learn_first_omega=True)))
    assert list(untied.embeddings) == ["encoder", "decoder", "output"]
    assert "encoder_positions" in untied.state_dict()


def test_a_pre_ln_stack_beside_admin_is_kept() -> None:
    model = tiny.shake_(tiny.model(encoder_scheme="admin", decoder_scheme="pre_ln")).double().eval()
    folded = fold(model)
    torch.testing.assert_close(folded(*tiny.batch(model)), model(*tiny.batch(model)), rtol=0, atol=1e-10)
    assert (folded.config.encoder_scheme, folded.config.decoder_scheme) == ("post_ln", "pre_ln")


def test_folding_keeps_mode_dtype_and_the_original() -> None:
    model = tiny.shake_(tiny.model()).bfloat16().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded = fold(model)
    assert folded.training
    assert folded.output_weight.dtype == torch.bfloat16
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", [name for name in SCHEMES if name not in tiny.FOLDING])
def test_what_does_not_fold_is_refused_by_name(name: str) -> None:
    with pytest.raises(SchemeError, match=f"{name} cannot be folded"):
        fold(tiny.model(name))


def test_an_omega_near_zero_is_refused_with_its_site() -> None:
    model = tiny.model()
    model.decoder.layers[1].ffn.skip.omega.data[3] = 1e-9
    with pytest.raises(ModelError, match=r"decoder\.layers\.1\.ffn has an ω entry of size 1e-09"):
        fold(model)


def test_scale_norm_cannot_take_up_a_vector() -> None:
    with pytest.raises(SchemeError, match="norm 'scale'"):
        fold(tiny.shake_(tiny.model(norm="scale")))
