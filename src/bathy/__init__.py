"""bathy: train Transformers as deep as you like, and see why they fail when they do."""

from __future__ import annotations

from importlib import import_module
from typing import Any

EXPORTS: dict[str, str] = {
    "Examination": "bathy.clinic.examination",
    "Monitor": "bathy.clinic.monitor",
    "PRESETS": "bathy.transformer",
    "Profile": "bathy.profiling",
    "Residual": "bathy.residual",
    "SCHEMES": "bathy.schemes",
    "Transformer": "bathy.transformer",
    "TransformerConfig": "bathy.transformer",
    "examine": "bathy.clinic.examination",
    "find_sites": "bathy.sites.trace",
    "fold": "bathy.folding",
    "profile": "bathy.profiling",
    "stabilise_": "bathy.admin",
}
"""Public name to the module that defines it; torch is imported when the first of them is used (PEP 562)."""

__all__ = sorted(EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in EXPORTS:
        raise AttributeError(f"module 'bathy' has no attribute {name!r}")
    return getattr(import_module(EXPORTS[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "EXPORTS"]
