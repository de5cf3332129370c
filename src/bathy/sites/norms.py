"""Norms that are no modules of their own, found by what they do: what comes out does not grow with what goes in."""

from __future__ import annotations

from dataclasses import replace

from bathy.sites.graph import Graph, Value
from bathy.sites.meaning import FACTORS, VIEWS, degree

LONGEST = 40
"""Operations that a norm written by hand may take."""


def mark_norms(graph: Graph) -> None:
    """Turn x · g(|x|), written out in a forward, into one value `norm` of x."""
    for value in list(graph.values):
        if value.number in graph.hidden:
            continue
        if value.op in FACTORS and value.floating and len(value.inputs) == 2 and value.inputs[0] != value.inputs[1]:
            source = _normalised(graph, value)
            if source >= 0:
                _mark(graph, value, source)


def _normalised(graph: Graph, value: Value) -> int:
    """The value whose size a product takes out of it; -1 for none."""
    whole = [i for i in value.inputs if graph.values[i].shape == value.shape and graph.values[i].floating]
    if not whole or not any(_statistic(graph, value, i) for i in value.inputs):
        return -1
    found, number = -1, whole[0]
    while value.number - number < LONGEST and graph.values[number].shape == value.shape:
        if degree(graph.values, value.number, number) == 0:
            found = number
        inside = graph.values[number]
        if inside.op not in VIEWS | {"sub", "add", "mul", "div"} or not inside.inputs:
            break
        number = inside.inputs[0]
    return found


def _statistic(graph: Graph, value: Value, operand: int) -> bool:
    """Whether the operand is one number for each of several others, as a mean over the width is."""
    return graph.values[graph.source(operand, {"expand"})].shape != value.shape


def _mark(graph: Graph, value: Value, source: int) -> None:
    inside = graph.between(source, value.number) or set()
    graph.consumers[source] = [n for n in graph.consumers[source] if n not in inside or n == value.number]
    graph.values[value.number] = replace(value, op="norm", inputs=(source,), path="")
    if value.number not in graph.consumers[source]:
        graph.consumers[source].append(value.number)
