import math

import numpy as np
import torch

from bathy.clinic.measures import attended, change, fit, log_log_slope, real, token_variance, zero_share

RNG = np.random.default_rng(0)


def test_token_variance_is_variance_over_tokens_by_mean_square() -> None:
    x = RNG.normal(2, 1, (30, 8))
    expected = np.mean([np.mean((x[:, d] - x[:, d].mean()) ** 2) for d in range(8)]) / np.mean(x**2)
    assert math.isclose(float(token_variance(torch.tensor(x))), expected, rel_tol=1e-9)
    assert float(token_variance(torch.ones(5, 4))) == 0.0


def test_only_real_tokens_count() -> None:
    x = torch.arange(12.0).reshape(2, 3, 2)
    assert real(x, torch.tensor([0, 4])).tolist() == [[0, 1], [8, 9]]


def test_the_output_change_is_the_mean_square_of_the_difference_of_normalised_outputs() -> None:
    a, b = RNG.normal(3, 2, (20, 16)), RNG.normal(-1, 5, (20, 16))

    def norm(x: np.ndarray) -> np.ndarray:
        return (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)

    expected = np.mean((norm(a) - norm(b)) ** 2)
    assert math.isclose(float(change(torch.tensor(a), torch.tensor(b))), expected, rel_tol=1e-4)
    assert float(change(torch.tensor(a), torch.tensor(7 * a + 2))) < 1e-9


def test_entropy_and_largest_logit_leave_out_what_is_not_seen_or_not_real() -> None:
    logits, seen = torch.randn(2, 3, 4, 5), torch.rand(2, 1, 4, 5) > 0.3
    seen[..., :2] = True
    real_queries = torch.tensor([[True, True, True, False], [True, False, False, False]])
    entropies, largest = [], 0.0
    for b, h, q in np.ndindex(2, 3, 4):
        if real_queries[b, q]:
            row = [float(logits[b, h, q, k]) for k in range(5) if seen[b, 0, q, k]]
            p = np.exp(row) / np.sum(np.exp(row))
            entropies.append(-np.sum(p * np.log(p)) / np.log(len(p)))
            largest = max(largest, *(abs(v) for v in row))
    found = attended(logits, seen.expand_as(logits), real_queries)
    assert math.isclose(found.entropy, np.mean(entropies), rel_tol=1e-5) and math.isclose(found.largest, largest, rel_tol=1e-6)


def test_a_fit_is_numpys() -> None:
    x, y = RNG.uniform(1, 9, 12), RNG.uniform(1, 9, 12)
    found, expected = fit(list(x), list(y)), np.polyfit(x, y, 1)
    assert np.allclose([found.slope, found.intercept], expected)
    assert math.isclose(found.r2, np.corrcoef(x, y)[0, 1] ** 2)
    assert math.isclose(fit(list(x), list(y), through_origin=True).slope, np.linalg.lstsq(x[:, None], y, rcond=None)[0][0])
    assert math.isclose(log_log_slope([1, 2, 4], [3, 12, 48]), 2.0)


def test_zero_share_counts_exact_zeros() -> None:
    assert float(zero_share(torch.tensor([0.0, 1e-30, 0.0, 2.0]))) == 0.5
