"""Norms: over how many numbers each one is, and how large its γ is."""

from __future__ import annotations

import math

from torch import nn

from bathy.clinic.probe import Subject
from bathy.clinic.readings import Reading
from bathy.sites.graph import is_norm


def norms(subject: Subject) -> list[Reading]:
    """norm_width, the numbers that a norm is over, where it says so; norm_gamma, the mean |γ|. No pass is needed."""
    result = []
    for name, module in subject.model.named_modules():
        if is_norm(module):
            width, gamma = norm_width(module), getattr(module, "weight", None)
            if width:
                result.append(subject.reading("norms", "norm_width", width, site=name))
            if gamma is not None:
                result.append(subject.reading("norms", "norm_gamma", gamma.detach().float().abs().mean(), site=name))
    return result


def norm_width(norm: nn.Module) -> int:
    """Numbers that one application of the norm is over; 0 where that depends on its input, as in batch and group norm."""
    shape = getattr(norm, "normalized_shape", None)
    if shape is not None:
        return math.prod(shape) if isinstance(shape, tuple | list) else int(shape)
    if any(hasattr(norm, name) for name in ("num_groups", "num_features")):
        return 0
    gamma = getattr(norm, "weight", None)
    return gamma.numel() if gamma is not None and gamma.dim() == 1 else 0
