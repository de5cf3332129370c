"""Who computes in training on a CPU: oneDNN or MKL the matrix products, and compiled kernels what lies between them.

On a CPU torch gives float32 products to MKL, whose kernels for AMD's processors are not its best: there oneDNN, which is inside
torch, takes 10 to 20 % less. The choice is by the processor's maker and not by the clock; a run keeps its own wherever it is
resumed, and all ranks take the first one's, so that they compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

import torch

from bathy.files import processor
from bathy.kernels import compiled
from bathy.kernels.packed import can_pack

COMPILED = "+compiled"
_fixed: list[str] = []


def library() -> str:
    """What takes float32 products in training on a CPU, onednn or mkl (torch's own choice); +compiled with our kernels."""
    return _fixed[-1] if _fixed else _fastest()


def usable(name: str) -> bool:
    """Whether all of it is here."""
    products = name.removesuffix(COMPILED)
    return (products == "mkl" or can_pack(torch.float32)) and (products == name or compiled.available())


@contextmanager
def products_by(name: str) -> Iterator[None]:
    """A block in which this computes, whatever the machine is."""
    _fixed.append(name)
    try:
        yield
    finally:
        _fixed.pop()


def by_torch() -> AbstractContextManager[None]:
    """A block in which torch's own operations compute."""
    return products_by("mkl")


def with_onednn() -> bool:
    """Whether oneDNN takes large products."""
    return library().startswith("onednn")


def with_compiled() -> bool:
    """Whether compiled kernels take what they can."""
    return library().endswith(COMPILED)


@cache
def _fastest() -> str:
    products = "onednn" if processor("vendor_id") == "AuthenticAMD" and usable("onednn") else "mkl"
    return products + COMPILED if usable(products + COMPILED) else products


def described(name: str) -> str:
    """For a person."""
    products = {"onednn": "oneDNN", "mkl": "torch's own choice (MKL on x86)"}[name.removesuffix(COMPILED)]
    return products + (", the rest by compiled kernels" if name.endswith(COMPILED) else "")
