"""What is measured, as functions of tensors: variances, norms, entropies, fits. Definitions as in the paper; float32.

x is a stream, tokens × width or batch × time × width; `rows` are the indices of the real tokens among all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def real(x: Tensor, rows: Tensor | None) -> Tensor:
    """The real tokens of x in float32, one a row."""
    flat = x.detach().flatten(0, -2)
    return (flat if rows is None else flat.index_select(0, rows)).float()


def token_variance(tokens: Tensor) -> Tensor:
    """Variance over tokens / mean square: 1 where tokens differ in all, 0 where all have become the same."""
    return tokens.var(0, correction=0).mean() / tokens.square().mean().clamp_min(torch.finfo(tokens.dtype).tiny)


def normalised(tokens: Tensor) -> Tensor:
    """Each token with mean 0 and variance 1: the stack's output as the next reader's norm would give it."""
    return F.layer_norm(tokens, tokens.shape[-1:])


def change(before: Tensor, after: Tensor) -> Tensor:
    """Mean over tokens and dimensions of (F(x_0, W) − F(x_0, W*))², both normalised: 0 when equal, 2 when unrelated."""
    return (normalised(before) - normalised(after)).square().mean()


def zero_share(x: Tensor) -> Tensor:
    """Share of entries that are exactly 0: in a gradient, what half precision could not hold."""
    return (x == 0).float().mean()


@dataclass(frozen=True)
class Attended:
    """What one attention did, over the queries that are real and the keys that each may see."""

    entropy: float
    """Mean entropy of the attention distributions, relative to the uniform one: 1 looks everywhere, 0 at one key."""
    largest: float
    """Largest |logit| before the softmax."""
    entropies: list[float]
    """The same entropy by head; NaN for a head without a query that sees two keys."""
    logits: list[float]
    """Largest |logit| by head."""


def attended(logits_bhqk: Tensor, seen_bhqk: Tensor, real_bq: Tensor | None) -> Attended:
    """Entropy and largest logit; a query that sees fewer than two keys has no entropy and is left out of its mean."""
    logits = logits_bhqk.detach().float().masked_fill(~seen_bhqk, -math.inf)
    p = logits.softmax(-1).nan_to_num(0.0)
    entropy = torch.special.entr(p).sum(-1)
    keys = seen_bhqk.sum(-1).expand_as(entropy)
    counted = (keys > 1) if real_bq is None else (keys > 1) & real_bq[:, None, :]
    relative = entropy / keys.clamp_min(2).log() * counted
    queries = counted.expand_as(entropy).sum((0, 2))
    visible = seen_bhqk if real_bq is None else seen_bhqk & real_bq[:, None, :, None]
    by_head = logits_bhqk.detach().float().abs().masked_fill(~visible, 0.0).amax((0, 2, 3))
    mean = relative.sum() / queries.sum()  # NaN where no query sees two keys
    return Attended(float(mean), float(by_head.max()), (relative.sum((0, 2)) / queries).tolist(), by_head.tolist())


@dataclass(frozen=True)
class Fit:
    """y ≈ slope · x + intercept, with the share of y's variance that it explains."""

    slope: float
    intercept: float
    r2: float


def fit(x: Sequence[float], y: Sequence[float], through_origin: bool = False) -> Fit:
    """Least squares; R² is against the mean of y in either case."""
    xs, ys = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    if through_origin:
        slope, intercept = float(xs @ ys / xs.square().sum()), 0.0
    else:
        slope = float(((xs - xs.mean()) * (ys - ys.mean())).sum() / (xs - xs.mean()).square().sum())
        intercept = float(ys.mean() - slope * xs.mean())
    left = (ys - slope * xs - intercept).square().sum()
    return Fit(slope, intercept, float(1 - left / (ys - ys.mean()).square().sum()))


def log_log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Exponent p of y ∝ x^p."""
    return fit([math.log(v) for v in x], [math.log(v) for v in y]).slope
