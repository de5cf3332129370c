# mypy: disable-error-code="import-not-found"
"""Small models of every class of the installed transformers and timm, with what their forward takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from bathy.lab.bench.optional import torchvision_ready
from bathy.lab.bench.shrink import MOST_PARAMETERS, WAYS, Excluded, noise, of_transformers, runs

Build = Callable[[int], tuple[nn.Module, Any]]
"""A model of so many layers and a batch for it."""
Entry = tuple[str, str, Build, bool]
"""Name, library, how it is built, and whether its depth can be chosen."""
MAPPINGS = {
    "": "MODEL_MAPPING_NAMES",
    ", causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    ", masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    ", sequence to sequence": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}
"""What a kind's name is followed by, and where transformers lists the classes."""
MOST_OWN = 32_000_000
"""Parameters that a model with its own initialisation may have: it is run a few times, not searched for a remedy."""


def transformers(own: bool = False, heads: bool = False) -> Iterator[Entry]:
    """The base class of every kind of model, with `heads` also its language models; `own`: its own initialisation.

    With its own, each way to make it small is tried until one runs; the reason why it is left out is that of the first.
    """
    from transformers.models.auto import modeling_auto

    def build(kind: str, mapping: str, depth: int) -> tuple[nn.Module, Any]:
        problem: Exception | None = None
        for small, whole in WAYS if own else WAYS[:1]:
            layers, most = None if whole else depth, MOST_OWN if own else MOST_PARAMETERS
            try:
                model = of_transformers(kind, layers, own, mapping, small, most)
                return model, runs(model)
            except Exception as error:  # a class of somebody else's may fail in any way
                problem = problem or error
        raise problem or Excluded("")

    for ending, mapping in list(MAPPINGS.items())[: None if heads else 1]:
        for kind in getattr(modeling_auto, mapping):
            yield f"{kind}{ending}", "transformers", partial(build, kind, mapping), True


def timm() -> Iterator[Entry]:
    """The smallest entry of each of timm's families, at a small picture."""
    torchvision_ready()
    import timm

    def build(name: str, depth: int) -> tuple[nn.Module, Any]:
        for changes in ({"img_size": 64, "embed_dim": 48, "depth": depth, "num_heads": 3}, {"img_size": 64}, {}):
            try:
                torch.manual_seed(0)
                model = timm.create_model(name, pretrained=False, num_classes=5, **changes)
                size = model.default_cfg.get("input_size", (3, 224, 224)) if "img_size" not in changes else (3, 64, 64)
                batch = noise(2, *size)
                if sum(p.numel() for p in model.parameters()) <= MOST_OWN:
                    model(batch)
            except Exception:  # a family that has no such setting, or does not take so small a picture
                continue
            if sum(p.numel() for p in model.parameters()) > MOST_OWN:
                raise Excluded(f"has more than {MOST_OWN // 10**6} million parameters in its smallest form")
            return model, batch
        raise Excluded("cannot be built without weights, or does not take its own picture size")

    for family in timm.list_modules():
        names = timm.list_models(module=family)
        if names:
            yield min(names, key=_weight), "timm", partial(build, min(names, key=_weight)), False


def _weight(name: str) -> tuple[int, int, str]:
    """Names of small models first."""
    order = ("test_", "atto", "femto", "pico", "nano", "tiny", "xxs", "_xs", "small", "_s", "base")
    return next((i for i, part in enumerate(order) if part in name), 99), len(name), name
