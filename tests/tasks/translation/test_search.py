# mypy: disable-error-code="union-attr, operator, index"
"""Laws of search: greedy, brute force, batches, caches, prefixes, ensembles."""

from itertools import product
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from bathy import Transformer
from bathy.errors import ConfigError, ModelError
from bathy.tasks.inference import prepare
from bathy.tasks.special_tokens import BOS, EOS, PAD, UNK
from bathy.tasks.translation.search import Decode, Ensemble, Hypothesis, Sentence, rate, search, top

VOCAB = 30
PENALTIES = [-0.5, 0.0, 0.6, 1.0, 2.0]


def lively(vocab: int = VOCAB, seed: int = 3) -> Transformer:
    """A random model, in float64, whose translations differ in length: EOS is sometimes likely, other special tokens never."""
    model = tiny.model(vocab=vocab, seed=seed, tie_embeddings=False).double().eval().requires_grad_(False)
    last, output = model.decoder.layers[-1].ffn.post, model.output_weight
    last.weight[0], last.bias[0] = 0, 1  # a constant feature: its column of the output matrix is a bias
    output.mul_(3)
    output[EOS] *= 2
    output[:, 0], output[: BOS + 1, 0] = 0, -50
    return model


def some(rows: int = 8) -> Tensor:
    return tiny.sentences(rows, 9, VOCAB)


def log_p(models: list[Transformer], source: Tensor, target: tuple[int, ...]) -> Tensor:
    """Σ log p by one uncached forward pass over one sentence."""
    source = source[source.ne(PAD)][None]
    probs = torch.stack([model(source, torch.tensor([[BOS, *target[:-1]]]))[0].softmax(-1) for model in models]).mean(0)
    return probs[range(len(target)), target].log().sum()


def exhaustive(model: Transformer, source: Tensor, decode: Decode) -> list[Hypothesis]:
    """Every translation there is, best first."""
    words = range(EOS + 1, model.config.vocab)
    found = [
        Hypothesis(float(log_p([model], source, (*y, EOS))) / (n + 1) ** decode.length_penalty, y)
        for n in range(decode.min_length - 1, decode.max_length)
        for y in product(words, repeat=n)
    ]
    return sorted(found, reverse=True)


def greedy(model: Transformer, source: Tensor, limit: int) -> tuple[int, ...]:
    """The likeliest token each time, without cache, batch or beam."""
    source, y = source[source.ne(PAD)][None], list[int]()
    while len(y) < limit - 1:
        logits = model(source, torch.tensor([[BOS, *y]]))[0, -1]
        logits[[PAD, UNK, BOS]] = -torch.inf
        if (token := int(logits.argmax())) == EOS:
            break
        y.append(token)
    return tuple(y)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("min_length", [1, 3])
def test_a_beam_as_wide_as_the_space_finds_the_best(penalty: float, min_length: int) -> None:
    model, source = lively(vocab=7), tiny.sentences(3, 5, vocab=7)
    decode = Decode(beam=3**4, n_best=9, length_penalty=penalty, min_length=min_length, max_length=4)
    for row, found in enumerate(search([model], source, decode)):
        expected = exhaustive(model, source[row], decode)[:9]
        assert [one.tokens for one in found] == [one.tokens for one in expected]
        torch.testing.assert_close([one.score for one in found], [one.score for one in expected])


def test_a_beam_of_one_is_greedy() -> None:
    model, source = lively(), some()
    found = search([model], source, Decode(beam=1, max_length=12))
    assert [one[0].tokens for one in found] == [greedy(model, row, 12) for row in source]
    assert len({len(one[0].tokens) for one in found}) > 2


@pytest.mark.parametrize("penalty", PENALTIES)
def test_stopping_early_changes_nothing(penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, source, rows = lively(), some(), list[int]()
    decode = Decode(beam=3, n_best=2, length_penalty=penalty, max_length=15)
    step = Ensemble.step
    monkeypatch.setattr(Ensemble, "step", lambda self, tokens: rows.append(len(tokens)) or step(self, tokens))  # type: ignore[func-returns-value]
    early = search([model], source, decode)
    assert sum(rows) < 15 * len(source) or penalty > 1
    monkeypatch.setattr(Sentence, "decided", lambda self: self.length >= self.limit)
    late = search([model], source, decode)
    assert [[one.tokens for one in found] for found in late] == [[one.tokens for one in found] for found in early]


@pytest.mark.parametrize("beam", [1, 4])
def test_batched_equals_one_by_one(beam: int) -> None:
    model, source = lively(), some(9)
    decode = Decode(beam=beam, n_best=beam)
    alone = [search([model], row[row.ne(PAD)][None], decode)[0] for row in source]
    for one, other in zip(alone, search([model], source, decode), strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        torch.testing.assert_close([h.score for h in one], [h.score for h in other])


@pytest.mark.parametrize("models", [1, 2])
def test_scores_are_those_of_one_uncached_pass_and_sorted(models: int) -> None:
    ensemble = [lively(seed=seed) for seed in range(models)]
    source, decode = some(5), Decode(beam=4, n_best=4, length_penalty=1.0)
    for row, found in zip(source, search(ensemble, source, decode), strict=True):
        assert found == sorted(found, reverse=True)
        for one in found:
            expected = log_p(ensemble, row, (*one.tokens, EOS)) / (len(one.tokens) + 1)
            assert one.score == pytest.approx(float(expected))


def test_rating_a_found_translation_gives_its_score() -> None:
    ensemble, source = [lively(seed=seed) for seed in (1, 2)], some(5)
    decode = Decode(beam=3, length_penalty=0.6)
    best = [found[0] for found in search(ensemble, source, decode)]
    width = 1 + max(len(one.tokens) for one in best)
    target = torch.tensor([[*one.tokens, EOS, *[PAD] * (width - 1 - len(one.tokens))] for one in best])
    torch.testing.assert_close(rate(ensemble, source, target, decode).tolist(), [one.score for one in best])


def test_an_ensemble_of_one_model_twice_is_that_model() -> None:
    model, source = lively(), some(5)
    for one, two in zip(search([model], source, Decode()), search([model, model], source, Decode()), strict=True):
        assert one[0].tokens == two[0].tokens and one[0].score == pytest.approx(two[0].score)


def test_translations_begin_with_their_prefix_and_the_rest_is_searched() -> None:
    model, source = lively(), some(4)
    prefix = torch.tensor([[7, 8, 9], [7, 0, 0], [0, 0, 0], [UNK, 9, 0]])
    found = search([model], source, Decode(beam=1, max_length=9), prefix)
    for row, begin, one in zip(source, prefix, found, strict=True):
        begin = begin[begin.ne(PAD)].tolist()
        assert list(one[0].tokens[: len(begin)]) == begin
        assert one[0].score == pytest.approx(
            float(log_p([model], row, (*one[0].tokens, EOS)) / (len(one[0].tokens) + 1) ** 0.6)
        )


def test_forced_length_is_kept_by_every_hypothesis() -> None:
    decode = Decode(beam=5, n_best=5, min_length=7, max_length=7)
    found = search([lively()], some(4), decode)
    assert {len(one.tokens) for part in found for one in part} == {6} and {len(part) for part in found} == {5}


@pytest.mark.parametrize("beam", [1, 4])
def test_a_prepared_decoder_finds_what_the_modules_find(beam: int) -> None:
    model, source, decode = lively(), some(9), Decode(beam=beam, n_best=beam)
    for one, other in zip(search([prepare(model)], source, decode), search([model], source, decode), strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        torch.testing.assert_close([h.score for h in one], [h.score for h in other])


def test_patience_stops_after_so_many_finished_hypotheses_and_much_of_it_is_exact() -> None:
    model, source = lively(), some()
    exact = search([model], source, Decode(beam=4, max_length=15))
    assert search([model], source, Decode(beam=4, max_length=15, patience=100)) == exact
    hasty = search([model], source, Decode(beam=4, max_length=15, patience=0.25))
    assert all(one[0].score <= best[0].score + 1e-9 for one, best in zip(hasty, exact, strict=True))
    assert [one[0].tokens for one in hasty] != [one[0].tokens for one in exact]


def test_a_model_that_gives_no_numbers_is_an_error_not_an_empty_translation() -> None:
    model = lively()
    model.decoder.layers[0].ffn.f.fc1.weight[2, 3] = torch.nan
    for beam in (1, 4):
        with pytest.raises(ModelError, match="NaN"):
            search([model], some(), Decode(beam=beam))


@pytest.mark.parametrize("width", [40, 640, 1000, 8191])
def test_top_is_topk(width: int) -> None:
    values = torch.randn(6, width)
    torch.testing.assert_close(top(values, 10), tuple(values.topk(10)))


@pytest.mark.parametrize("wrong", [{"beam": 0}, {"beam": 2, "n_best": 3}, {"min_length": 5, "max_length": 4}, {"baem": 4}])
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"decode\."):
        Decode(**wrong)
