"""Whether what a model returns depends on what it is given: token variance and information of its output, and its source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bathy.clinic.losses import first_tensor
from bathy.clinic.measures import token_variance
from bathy.clinic.probe import Labelled
from bathy.clinic.readings import Reading, groups
from bathy.errors import BatchError

MOST_VECTORS = 2048
"""Vectors of an output that are read, evenly spaced."""


def information(vectors: Tensor) -> Tensor:
    """Mean over tokens of KL(softmax(y_t) ‖ their mean): nats by which what the model says depends on what it is given."""
    logs = vectors.log_softmax(-1)
    mean = logs.logsumexp(0) - math.log(len(logs))
    return (logs.exp() * (logs - mean)).sum(-1).mean()


def vectors_of(output: Any) -> Tensor | None:
    """The vectors that a model returns, in float32; nothing where it returns one only, or all zeros as some models start."""
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    try:  # a loss comes first in some models' outputs, so that logits are asked for by name
        y = (named if isinstance(named, Tensor) else first_tensor(output)).detach()
    except BatchError:
        return None
    if not y.dim():
        return None
    vectors = y.flatten(0, -2) if y.dim() > 1 else y[:, None]
    vectors = vectors[:: math.ceil(len(vectors) / MOST_VECTORS)].float() if len(vectors) else vectors
    return vectors if len(vectors) > 1 and bool(vectors.any()) else None


@torch.no_grad()
def output_rows(label: Labelled, exam: str, output: Any) -> list[Reading]:
    """Rows of a model's output: token variance; information where a vector has several entries."""
    vectors = vectors_of(output)
    if vectors is None:
        return []
    found = [label.reading(exam, "output_token_variance", token_variance(vectors))]
    if vectors.shape[1] > 1:
        found.append(label.reading(exam, "information", information(vectors)))
    return found


def source_influence(rows: Sequence[Reading]) -> float | None:
    """How much the loss depends on the source, relative to the target: to first order, by what one step's rows say.

    ‖∂L/∂x‖ · the spread of x over tokens, at the last site of the stack that cross-attention reads, over the same at the last
    site of the stack that reads it. Small: a wrong source would cost the decoder nothing. None where no stack reads another.
    """
    readers = {row.stack for row in rows if row.kind == "cross_attention"}
    effects: dict[bool, list[float]] = {True: [], False: []}
    for (stack,), own in groups([row for row in rows if row.index] if readers else [], "stack"):
        effects[stack in readers] += _effect(own)
    sources, targets = effects[False], effects[True]
    return max(sources) / max(targets) if sources and max(targets, default=0.0) > 0 else None


def _effect(rows: Sequence[Reading]) -> list[float]:
    """‖∂L/∂x‖ · √(variance · token variance) at a stack's last site; none where one was not read, as of a frozen stack."""
    last = max(row.index for row in rows)
    found = {row.quantity: row.value for row in rows if row.index == last}
    parts = [found.get(name, math.nan) for name in ("gradient", "output_variance", "token_variance")]
    gradient, variance, differing = parts
    return [gradient * math.sqrt(max(0.0, variance * differing))] if all(map(math.isfinite, parts)) else []
