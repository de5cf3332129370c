"""Which rows of a matrix a value stands for: the operations that moved its numbers are run again on the numbers' places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from bathy.sites.meaning import PIECES, RESHAPES, VIEWS

if TYPE_CHECKING:
    from bathy.sites.graph import Graph, Value

Rows = tuple[int, int]
ALL_ROWS: Rows = (0, -1)
"""Every row, or rows that are not known apart."""
CASTS = {"_to_copy", "to", "clone", "contiguous", "detach", "alias"}


def layout(graph: Graph, operand: int, left: bool) -> tuple[bool, Rows]:
    """Whether a parameter is stored as inputs × outputs, and which of its outputs a product uses; `left`: W · x."""
    way = [operand]
    while graph.values[way[-1]].op != "parameter":
        way.append(graph.values[way[-1]].inputs[0])
    shape = graph.values[way[-1]].shape
    places = _moved(graph, way[::-1], torch.arange(shape.numel()).reshape(shape))
    if places is None or places.dim() < 2 or min(places.shape[-2:]) < 2:
        return False, ALL_ROWS
    inputs = places[..., 0, 1] if left else places[..., 1, 0]
    transposed = int((inputs - places[..., 0, 0]).flatten()[0]) != 1
    if len(shape) != 2:
        return transposed, ALL_ROWS
    line = places.select(-1 if left else -2, 0)  # one input, every output
    outputs = line % shape[1] if transposed else line // shape[1]
    return transposed, _range(outputs, shape[1 if transposed else 0])


def in_order(graph: Graph, way: Sequence[int]) -> bool:
    """Whether the last value of a way has the first one's numbers in the same order, though views turned them on the way."""
    if all(graph.values[number].op not in VIEWS - RESHAPES for number in way[1:]):
        return True
    shape = graph.values[way[0]].shape
    moved = _moved(graph, way, torch.arange(shape.numel()).reshape(shape))
    return moved is not None and torch.equal(moved.flatten(), torch.arange(shape.numel()))


def channels(graph: Graph, way: Sequence[int], rows: Rows, conv: bool) -> Rows:
    """Which rows of the matrix made the last value of a way that begins with the matrix's product."""
    shape = graph.values[way[0]].shape
    dim = 1 if conv else len(shape) - 1
    count = shape[dim]
    places = torch.arange(count).reshape([-1 if i == dim else 1 for i in range(len(shape))]).expand(shape)
    moved = _moved(graph, way, places)
    if moved is None:
        return ALL_ROWS
    first, last = _range(moved, count)
    start = 0 if rows == ALL_ROWS else rows[0]
    return rows if (first, last) == ALL_ROWS else (start + first, start + last)


def _range(places: Tensor, count: int) -> Rows:
    """The range of numbers that occur, if they are one and not all."""
    found = places.unique()
    first, last = int(found[0]), int(found[-1]) + 1
    return (first, last) if last - first == len(found) < count else ALL_ROWS


def _moved(graph: Graph, way: Sequence[int], places: Tensor) -> Tensor | None:
    """The places after every operation of the way; None where one does more than move numbers or work on each by itself."""
    for before, number in pairwise(way):
        value = graph.values[number]
        if value.op in VIEWS | PIECES:
            result = _again(value, before, places)
            if result is None:
                return None
            places = result
        elif value.shape != places.shape:
            return None
    return places


def _again(value: Value, before: int, places: Tensor) -> Tensor | None:
    """One operation that moves numbers, run on places."""
    from bathy.sites.graph import Ref

    if value.op in CASTS:
        return places
    if value.function is None or any(isinstance(leaf, Ref) and leaf.number != before for leaf in tree_leaves(value.arguments)):
        return None
    if value.op in ("view", "_unsafe_view"):
        return places.reshape(value.shape)
    arguments = tree_map_only(Ref, lambda _: places, value.arguments)
    try:
        result = value.function(*arguments)
    except RuntimeError:  # a view that these strides do not allow
        return None
    return result[value.part[0]] if isinstance(result, tuple | list) else result
