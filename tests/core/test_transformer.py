# mypy: disable-error-code="union-attr, operator, index"
import copy
from typing import Any, cast

import pytest
import tiny
import torch
from torch import nn

from bathy import PRESETS, SCHEMES, Transformer, TransformerConfig
from bathy.core.positions import sinusoids
from bathy.errors import ConfigError

PARAMETERS = {  # millions, at the vocabulary that the paper's data gives
    "iwslt14_deen": (10_000, 37), "wmt14_ende_6l": (37_000, 63), "wmt14_ende_12l": (37_000, 107),
    "wmt14_ende_18l": (37_000, 151), "wmt14_enfr_6l": (44_000, 67), "wmt14_enfr_60l_12l": (44_000, 262),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_presets_have_the_papers_sizes(name: str) -> None:
    vocab, millions = PARAMETERS[name]
    with torch.device("meta"):
        model = Transformer(TransformerConfig(vocab=vocab, **PRESETS[name].model_dump()))
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)


@pytest.mark.parametrize("depths", [*tiny.ARCHITECTURES.values(), (12, 3), (1, 5)])
def test_any_depth_gives_logits_for_every_target_position(depths: tuple[int, int]) -> None:
    model = tiny.model(depths=depths)
    batch = tiny.batch(model)
    assert model(*batch).shape == (*batch[-1].shape, 50)
    assert [len(getattr(model, stack).layers) for stack in model.config.stacks] == [depth for depth in depths if depth]


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
def test_padding_changes_nothing(name: str, depths: tuple[int, int]) -> None:
    model = tiny.shake_(tiny.model(name, depths)).double().eval()
    batch = tiny.batch(model)
    padded = tuple(nn.functional.pad(tokens, (0, 3)) for tokens in batch)
    real = batch[-1].ne(0)
    torch.testing.assert_close(model(*padded)[:, : real.shape[1]][real], model(*batch)[real])


@pytest.mark.parametrize("depths", [(3, 2), (0, 3)])
def test_a_decoder_does_not_see_the_future(depths: tuple[int, int]) -> None:
    model = tiny.model(depths=depths).double().eval()
    *source, target = tiny.batch(model)
    changed = target.clone()
    changed[:, 3:] = 7
    torch.testing.assert_close(model(*source, changed)[:, :3], model(*source, target)[:, :3])


def test_an_encoder_sees_both_sides() -> None:
    model = tiny.model(depths=(2, 0)).eval()
    (tokens,) = tiny.batch(model)
    changed = tokens.clone()
    changed[:, -1] = 7
    assert not torch.equal(model(changed)[0, 0], model(tokens)[0, 0])


def test_the_stream_starts_from_scaled_embeddings_and_positions() -> None:
    model = tiny.model(width=64).eval()
    tokens = tiny.sentences()
    expected = model.output_weight[tokens] * 8 + sinusoids(tokens.shape[1], 64)
    torch.testing.assert_close(model.embed(tokens, "encoder"), expected)
    assert model.output_weight[0].abs().max() == 0
    assert model.output_weight[1:].std().item() == pytest.approx(64**-0.5, rel=0.05)


def test_positions_are_sine_and_cosine_halves() -> None:
    table = sinusoids(30, 16).double()
    for position, i in [(0, 0), (3, 2), (29, 7)]:
        angle = torch.tensor(position / 10000 ** (2 * i / 16)).double()
        torch.testing.assert_close(table[position, [i, 8 + i]], torch.stack([angle.sin(), angle.cos()]), atol=1e-6, rtol=0)


def test_each_dropout_acts_in_training_and_none_in_evaluation() -> None:
    for place in ("dropout", "attention_dropout", "activation_dropout"):
        model = tiny.model("post_ln", **cast(Any, {place: 0.5}))
        batch = tiny.batch(model)
        assert not torch.equal(model(*batch), model(*batch)), place
        model.eval()
        assert torch.equal(model(*batch), model(*batch)), place


def test_dropout_stands_in_all_four_places() -> None:
    model = tiny.model("post_ln", (1, 0), dropout=0.25, attention_dropout=0.5, activation_dropout=0.75)
    layer = model.encoder.layers[0]
    rates = [model.dropout.p, layer.self_attention.f.dropout.p, layer.ffn.f.dropout.p]
    assert rates == [0.25] * 3
    assert (layer.self_attention.f.attention_dropout.p, layer.ffn.f.activation_dropout.p) == (0.5, 0.75)


@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
def test_activation_checkpointing_changes_no_gradient(depths: tuple[int, int]) -> None:
    plain = tiny.model(depths=depths, dropout=0.3)
    light = copy.deepcopy(plain).checkpoint_()
    for model in (plain, light):
        torch.manual_seed(5)
        model(*tiny.batch(model)).logsumexp(-1).sum().backward()
    for (name, a), b in zip(plain.named_parameters(), light.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_encoder_and_decoder_choose_their_schemes_apart() -> None:
    model = tiny.model(encoder_scheme="post_ln", decoder_scheme="pre_ln")
    assert isinstance(model.encoder.layers[0].ffn.post, nn.LayerNorm)
    assert isinstance(model.encoder.final, nn.Identity)
    assert isinstance(model.decoder.layers[0].ffn.pre, nn.LayerNorm)
    assert isinstance(model.decoder.final, nn.LayerNorm)


def test_embeddings_are_one_matrix_unless_untied() -> None:
    assert list(tiny.model().embeddings) == ["shared"]
    assert list(tiny.model(tie_embeddings=False).embeddings) == ["encoder", "decoder", "output"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "model.heads is 3; it must divide model.width"),
        ({"depths": (0, 0)}, "at least one a layer"),
        ({"dropout": 1.0}, "model.dropout is 1.0"),
        ({"widht": 8}, "model.widht is not a setting. Did you mean model.width"),
        ({"norm": "lay"}, "no norm 'lay'"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        tiny.config(**changes)
    assert "\n" not in str(caught.value)


def test_calls_that_do_not_fit_the_stacks_are_refused() -> None:
    tokens = tiny.sentences()
    with pytest.raises(ConfigError, match="one sequence"):
        tiny.model(depths=(2, 0))(tokens, tokens)
    with pytest.raises(ConfigError, match="source, target_in"):
        tiny.model()(tokens)
    with pytest.raises(ConfigError, match="max_length is 5"):
        tiny.model(max_length=5)(tokens, tokens)
