"""Sums that look like a residual connection and are none, and shortcuts on which a matrix mixes several streams."""

from __future__ import annotations

from bathy.sites.graph import Graph, Value
from bathy.sites.matrices import uses_of
from bathy.sites.meaning import FACTORS, LOOKUPS, VIEWS

SCORES = VIEWS | FACTORS | {"add", "sub", "cat", "masked_fill", "where"}
"""What may lie between attention's scores and their softmax."""
NEAREST = {"argmax", "argmin", "max", "min"}
"""Operations that choose one entry of many."""
SOFTMAX = {"_softmax", "_safe_softmax"}


def unlike(graph: Graph, value: Value, inside: set[int]) -> str:
    """Why a sum x + f(x) is no residual connection all the same; '' where it is one."""
    if _are_scores(graph, value):
        return "is a sum of attention's scores"
    tables = [table for number in inside if (table := _chosen_from(graph, graph.values[number], inside))]
    quantised = bool(tables) and max(len(table.shape) for table in tables) == 2  # of three dimensions: an expert's matrix
    return "is part of a quantiser: one term is an entry of a codebook, chosen by the other" if quantised else ""


def mixed_stream(graph: Graph, value: Value) -> list[int]:
    """The streams that a product mixes with weights computed from them, as hyper-connections do; their width stays."""
    weights, streams = value.inputs
    small = graph.values[weights].shape[-2:]
    mixes = small[0] == small[1] < value.shape[-1] and graph.values[streams].shape == value.shape
    computed = graph.depends(weights, graph.source(streams, VIEWS)) and not uses_of(graph, value)
    return [streams] if mixes and computed else []


def _are_scores(graph: Graph, value: Value) -> bool:
    """Whether a sum goes to a softmax as it is: attention's scores, to which a layer may add those of the layer before."""
    waiting, seen = [value.number], set[int]()
    while waiting:
        for user in graph.consumers[waiting.pop()]:
            if graph.values[user].op in SOFTMAX:
                return True
            if graph.values[user].op in SCORES and user not in seen and not uses_of(graph, graph.values[user]):
                seen.add(user)
                waiting.append(user)
    return False


def _chosen_from(graph: Graph, value: Value, inside: set[int]) -> Value | None:
    """The table of the model of which a value is rows, each the best of all by numbers computed from x; None for others."""
    if value.op not in LOOKUPS or not value.floating:
        return None
    table = graph.values[graph.source(value.inputs[0], VIEWS)]
    ways = (graph.values[graph.source(number, VIEWS)] for number in value.inputs[1:] if number in inside)
    return table if table.op in ("parameter", "buffer") and any(way.op in NEAREST for way in ways) else None
