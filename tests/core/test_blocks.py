# mypy: disable-error-code="union-attr, operator, index"
"""Each block is what Hugging Face computes with the same weights, in training and step by step with the cache."""

from typing import Any

import peers
import pytest
import tiny
import torch
from torch import Tensor

from bathy import SCHEMES, Transformer, fold
from bathy.core.config import BLOCKS
from bathy.core.cost import matrix_flops
from bathy.errors import ConfigError

ALIKE = {
    "llama": (peers.LLAMA, "Llama", {}),
    "grouped": (peers.LLAMA | {"kv_heads": 2}, "Llama", {}),
    "one key": (peers.LLAMA | {"kv_heads": 1, "rotary_base": 500.0}, "Llama", {}),
    "geglu": (peers.LLAMA | {"feed_forward": "geglu"}, "Llama", {"hidden_act": "gelu"}),
    "qk norm": (peers.LLAMA | {"kv_heads": 2, "qk_norm": True}, "Qwen3", {}),
}


def shaken(**changes: Any) -> Transformer:
    return tiny.shake_(tiny.model(**changes))


def tokens(rows: int = 3, length: int = 9) -> Tensor:
    return torch.randint(1, 50, (rows, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", ALIKE)
def test_logits_gradients_and_cached_steps_are_llamas(name: str) -> None:
    settings, kind, changes = ALIKE[name]
    model = shaken(**settings)
    peer, batch = peers.llama(model, kind, **changes), tokens()
    expected = peer(batch).logits
    torch.testing.assert_close(model(batch), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(stepwise(model, batch), expected, rtol=0, atol=1e-4)
    for logits in (model(batch), expected):
        logits.logsumexp(-1).sum().backward()
    roots = model.embeddings["decoder"].weight, peer.model.embed_tokens.weight
    torch.testing.assert_close(roots[0].grad, roots[1].grad, rtol=1e-3, atol=1e-4)


def stepwise(model: Transformer, batch: Tensor) -> Tensor:
    cache = model.cache()
    with torch.no_grad():
        parts = [model.decode(part, cache=cache) for part in batch.split([2, 1, 1, 3, 2], 1)]
        return model.logits(torch.cat(parts, 1))


def test_a_pre_ln_model_with_learned_positions_is_gpt2() -> None:
    model, batch = shaken(**peers.GPT2, max_length=16), tokens()
    torch.testing.assert_close(model(batch), peers.gpt2(model)(batch).logits, rtol=0, atol=1e-4)


def test_a_post_ln_encoder_with_norm_and_head_is_bert() -> None:
    model, batch = shaken(**peers.BERT, max_length=16), tiny.sentences()
    expected = peers.bert(model)(batch, attention_mask=batch.ne(0).long()).logits
    real = batch.ne(0)
    torch.testing.assert_close(model(batch)[real], expected[real], rtol=0, atol=1e-4)


def test_capped_logits_stay_below_the_cap() -> None:
    plain, capped = (tiny.model(logit_cap=cap).double().eval() for cap in (0.0, 0.5))
    z = plain(*tiny.batch(plain))
    torch.testing.assert_close(capped(*tiny.batch(plain)), 0.5 * torch.tanh(z / 0.5))


VARIED: dict[str, Any] = {
    "kv_heads": 1, "positions": "rotary", "qk_norm": True, "biases": False, "embedding_scale": "one", "embedding_norm": True,
    "head": "bert", "logit_cap": 5.0,
}  # fmt: skip
BY_BLOCK = [{name: value} for name, value in VARIED.items()]
BY_BLOCK += [{"positions": "learned"}, {"feed_forward": "swiglu"}, {"feed_forward": "geglu"}, {"init": "normal"}]


def test_every_block_is_varied() -> None:
    assert set(VARIED) == set(BLOCKS)


@pytest.mark.parametrize("changes", [*BY_BLOCK, VARIED | {"feed_forward": "swiglu"}], ids=str)
@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
def test_every_block_pads_caches_counts_and_loses_as_it_should(depths: tuple[int, int], changes: dict[str, Any]) -> None:
    model = tiny.shake_(tiny.model("pre_ln", depths, **changes)).double().eval()
    *source, target = batch = tiny.batch(model)
    padded = tuple(torch.nn.functional.pad(part, (0, 2)) for part in batch)
    real, logits = target.ne(0), model(*batch)
    torch.testing.assert_close(model(*padded)[:, : target.shape[1]][real], logits[real])
    if depths[1]:
        memory: Any = model.encode(*source) if source else (None, None)
        cache = model.cache()
        steps = [model.logits(model.decode(part, memory[0], memory[1], cache=cache)) for part in target.split(2, 1)]
        torch.testing.assert_close(torch.cat(steps, 1), logits)
    loss, _ = model.cross_entropy(model.features(*batch).flatten(0, 1), target.flatten(), 0.1)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, expected)
    assert matrix_flops(model)[model.config.stacks[-1]] > 0


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("changes", [*BY_BLOCK, VARIED | {"feed_forward": "swiglu"}], ids=str)
def test_every_scheme_goes_with_every_block_or_is_refused_by_name(name: str, changes: dict[str, Any]) -> None:
    try:
        model = tiny.model(name, (2, 2), **changes)
    except ConfigError as error:
        assert f"scheme is '{name}'" in str(error) and ";" in str(error) and "\n" not in str(error)
        return
    model(*tiny.batch(model)).logsumexp(-1).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("learn_first", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("changes", [*BY_BLOCK, VARIED | {"feed_forward": "swiglu"}], ids=str)
@pytest.mark.parametrize("depths", tiny.ARCHITECTURES.values())
def test_folding_admin_is_exact_with_every_block(
    depths: tuple[int, int], changes: dict[str, Any], norm: str, learn_first: bool
) -> None:
    model = tiny.model("admin", depths, norm=norm, learn_first_omega=learn_first, **changes)
    model = tiny.shake_(model).double().eval()
    folded, batch = fold(model), tiny.batch(model)
    assert {folded.config.scheme_name(stack) for stack in folded.config.stacks} == {"post_ln"}
    torch.testing.assert_close(folded(*batch), model(*batch), rtol=0, atol=1e-10)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("depths", [(2, 0), (0, 2)])
def test_packed_documents_are_separate_ones(depths: tuple[int, int], positions: str) -> None:
    model = tiny.shake_(tiny.model("pre_ln", depths, positions=positions)).double().eval()
    parts = [tokens(1, length) for length in (4, 2, 3)]
    row = torch.cat([*parts, torch.zeros(1, 2, dtype=torch.long)], 1)
    documents = torch.tensor([[7] * 4 + [3] * 2 + [8] * 3 + [0] * 2])
    packed = model(row, documents=documents)[0, :9]
    torch.testing.assert_close(packed, torch.cat([model(part)[0] for part in parts]))


@pytest.mark.parametrize("changes", [{"qk_norm": True}, {"norm": "rms", "scheme": "sub_ln"}], ids=str)
def test_norms_of_root_mean_squares_take_half_precision_without_a_warning(changes: dict[str, Any]) -> None:
    model = tiny.model(**{"scheme": "pre_ln", "depths": (0, 2), **changes})
    expected = model(tokens())
    with torch.autocast("cpu", torch.bfloat16):
        found = model(tokens())
    found.float().logsumexp(-1).sum().backward()
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.1)


def test_a_cache_of_grouped_heads_stores_those_of_the_keys_only() -> None:
    model = tiny.model("pre_ln", (0, 2), heads=4, kv_heads=2).eval()
    cache = model.cache()
    model.decode(tokens(), cache=cache)
    assert cache.own[0].held()[0].shape == (3, 2, 9, 4)


def test_matrices_of_normal_init_are_gpt2s() -> None:
    model = tiny.model("pre_ln", (0, 8), init="normal", width=64, ffn=256)
    by_role = {m.role: m.weight.std().item() for m in model.decoder.layers[0].self_attention.f.matrices()}
    by_role |= {m.role: m.weight.std().item() for m in model.decoder.layers[0].ffn.f.matrices()}
    for role, deviation in by_role.items():
        assert deviation == pytest.approx(0.02 / 4 if role in ("out", "fc2") else 0.02, rel=0.05), role
    assert model.output_weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_xavier_of_gates_and_grouped_heads_is_by_their_own_shape() -> None:
    model = tiny.model("deepnorm", (0, 8), width=64, ffn=128, heads=8, kv_heads=2, feed_forward="swiglu")
    beta, layer = (8 * 8) ** -0.25, model.decoder.layers[0]
    rows = {"q": 64, "k": 16, "v": 16, "out": 64, "gate": 128, "fc1": 128, "fc2": 128}
    for matrix in (m for part in (layer.self_attention, layer.ffn) for m in part.f.matrices()):
        bound = (6 / (rows[matrix.role] + 64)) ** 0.5 * (1 if matrix.role in "qk" else beta)
        assert 0.97 * bound <= matrix.weight.abs().max().item() <= bound * (1 + 1e-6), matrix.role
    plain = tiny.model("post_ln", (0, 1), width=64, heads=8, kv_heads=2).decoder.layers[0].self_attention.f.qkv.weight
    assert plain.abs().max().item() == pytest.approx((6 / (64 + 32 + 64)) ** 0.5, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 3, "heads": 4}, "model.kv_heads is 3; it must divide model.heads"),
        ({"positions": "rotray"}, "Did you mean rotary"),
        ({"positions": "rotary", "width": 18, "heads": 6}, "rotary positions need an even width of heads"),
        ({"feed_forward": "swigul"}, "Did you mean swiglu"),
        ({"init": "kaiming"}, "no initialisation 'kaiming'"),
        ({"context": 2000}, "model.context is 2000; it can be at most model.max_length"),
        ({"scheme": "looklinear", "feed_forward": "swiglu"}, "encoder_scheme is 'looklinear': it is not defined for the gate"),
        ({"scheme": "deepnorm", "init": "normal"}, "its gains are relative to Xavier's"),
    ],
)
def test_a_block_that_does_not_fit_is_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        tiny.config(**changes)
    assert "\n" not in str(caught.value)


def test_old_settings_are_still_read() -> None:
    assert tiny.config(activation="gelu").feed_forward == "gelu"


def test_documents_and_long_sequences_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="source, target_in"):
        tiny.model()(tokens(), tokens(), documents=tokens())
    with pytest.raises(ConfigError, match="context is 5"):
        tiny.model(depths=(0, 1), positions="learned", context=5)(tokens())
