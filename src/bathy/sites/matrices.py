"""The matrices of a branch and what they do: q, k, v and out of attention, fc1 and fc2 of a feed-forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import nn

from bathy.residual import Matrix
from bathy.sites.graph import DROPOUTS, VIEWS, Graph, Value

FUSED = "multi_head_attention_forward"
"""Attention as one function: all of `nn.MultiheadAttention`."""
PRODUCTS = {"matmul", "bmm", "einsum", "baddbmm", "__matmul__"}
PARTS = {"split", "chunk", "tensor_split"}


@dataclass(frozen=True)
class Use:
    """One product with a parameter of the model."""

    number: int
    """The value it gives."""
    data: int
    """The value it multiplies."""
    weight: str
    bias: str = ""
    role: str = ""
    transposed: bool = False
    rows: tuple[int, int] = (0, 1)
    """Which of how many equal parts of the rows."""


def uses(graph: Graph, numbers: Iterable[int]) -> list[Use]:
    """The products with matrices of the model among the values, in order."""
    return [use for number in sorted(numbers) for use in _uses(graph, graph.values[number])]


def _uses(graph: Graph, value: Value) -> list[Use]:
    names = [graph.parameter(number) for number in value.inputs]
    if value.op == FUSED:
        return _fused(graph, value)
    if value.op == "linear" and names[1]:
        return [Use(value.number, value.inputs[0], names[1], names[2] if len(names) > 2 else "")]
    if value.op == "addmm" and names[2]:
        return [Use(value.number, value.inputs[1], names[2], names[0], transposed=True)]
    if value.op in PRODUCTS and len(names) == 2 and bool(names[0]) != bool(names[1]):
        data, weight = (0, 1) if names[1] else (1, 0)
        turned = graph.values[value.inputs[weight]].op != "parameter"
        return [Use(value.number, value.inputs[data], names[weight], transposed=not turned)]
    return []


def _fused(graph: Graph, value: Value) -> list[Use]:
    """q, k, v and out of attention in one function, whose q, k, v may be one matrix or three."""
    given = value.arguments
    names = {name: graph.parameter(number) for name, number in given.items()}
    bias = names.get("in_proj_bias", "")
    found = []
    for i, (role, data) in enumerate(zip("qkv", ("query", "key", "value"), strict=True)):
        own = names.get(f"{role}_proj_weight", "")
        rows = (0, 1) if own else (i, 3)
        found.append(
            Use(value.number, given[data], own or names.get("in_proj_weight", ""), "" if own else bias, role, rows=rows)
        )
    found.append(Use(value.number, value.number, names["out_proj_weight"], names.get("out_proj_bias", ""), "out"))
    return found


def attention(graph: Graph, branch: set[int]) -> tuple[int, dict[str, int]] | None:
    """Where the branch attends, and the values that are its q, k and v there; None for a branch without attention."""
    for number in sorted(branch):
        value = graph.values[number]
        if value.op == FUSED:
            return number, {role: value.arguments[name] for role, name in zip("qkv", ("query", "key", "value"), strict=True)}
        if value.op == "scaled_dot_product_attention":
            return number, dict(zip("qkv", value.inputs[:3], strict=True))
        if value.op in ("softmax", "_softmax"):
            return _by_softmax(graph, number, branch)
    return None


def _by_softmax(graph: Graph, number: int, branch: set[int]) -> tuple[int, dict[str, int]] | None:
    """q and k from the product before a softmax, v from the product after it."""
    scores = _first_product(graph, number, branch)
    after = [user for user in graph.users(number, VIEWS | DROPOUTS) if graph.values[user].op in PRODUCTS]
    if scores is None or not after:
        return None
    mixed = graph.values[after[0]]
    weights = [graph.source(source, VIEWS | DROPOUTS) == number for source in mixed.inputs]
    return mixed.number, {"q": scores.inputs[0], "k": scores.inputs[1], "v": mixed.inputs[weights.index(False)]}


def _first_product(graph: Graph, number: int, branch: set[int]) -> Value | None:
    waiting = [number]
    while waiting:
        value = graph.values[waiting.pop(0)]
        if value.op in PRODUCTS:
            return value
        waiting += [source for source in value.inputs if source in branch]
    return None


def with_roles(graph: Graph, found: list[Use], attends: tuple[int, dict[str, int]] | None) -> list[Use]:
    """The uses with their roles; one that feeds several of q, k, v through a split becomes one use for each.

    A matrix before q, k or v has the role `in`. What neither leads to attention nor comes from it is a feed-forward beside it.
    """
    if attends is None:
        return _feed_forward(found)
    number, parts = attends
    named: dict[int, list[Use]] = {}
    for role, start in parts.items():
        origin, rows = _origin(graph, start, {use.number for use in found if not use.role})
        named.setdefault(origin, []).extend(replace(use, role=role, rows=rows) for use in found if use.number == origin)
    result, beside = [], []
    for use in found:
        if use.role:
            result.append(use)
        elif use.number in named:
            result += _separate(named[use.number])
        elif graph.between(number, use.data) is not None:
            result.append(replace(use, role="out"))
        elif graph.between(use.number, number) is not None:
            result.append(replace(use, role="in"))
        else:
            beside.append(use)
    return sorted(result, key=lambda use: "qkv".find(use.role) % 4) + _feed_forward(beside)


def _feed_forward(found: list[Use]) -> list[Use]:
    """fc1 for all but the last, which is fc2; a matrix alone is `out`."""
    last = "fc2" if len(found) > 1 else "out"
    return [replace(use, role=last if use.number == found[-1].number else "fc1") for use in found]


def _separate(parts: list[Use]) -> list[Use]:
    """Uses of different rows, or, where it is not known which rows are whose, one use with a joint role."""
    if len(parts) == len({use.rows for use in parts}):
        return parts
    return [replace(parts[0], role="".join(use.role for use in parts), rows=(0, 1))]


def _origin(graph: Graph, number: int, targets: Iterable[int]) -> tuple[int, tuple[int, int]]:
    """The nearest of the matrix products that a value comes from, and which part of its rows a split gave; -1 for none."""
    targets, seen = set(targets), set[int]()
    waiting = [(number, (0, 1))]
    while waiting:
        number, rows = waiting.pop(0)
        if number in targets:
            return number, rows
        value = graph.values[number]
        if value.op in PARTS and graph.values[value.inputs[0]].shape[-1] == value.shape[-1] * value.part[1]:
            rows = value.part
        waiting += [(source, rows) for source in value.inputs if source not in seen]
        seen.update(value.inputs)
    return -1, (0, 1)


def matrices(model: nn.Module, found: list[Use], reads: set[int]) -> list[Matrix]:
    """The uses as matrices of the model; a second one of the same role is numbered, as the two inputs of a gated unit."""
    counts: Counter[str] = Counter()
    result = []
    for use in found:
        counts[use.role] += 1
        role = use.role if counts[use.role] == 1 else f"{use.role}.{counts[use.role]}"
        result.append(_matrix(model, use, role, use.data in reads))
    return result


def _matrix(model: nn.Module, use: Use, role: str, reads: bool) -> Matrix:
    path, _, name = use.weight.rpartition(".")
    module = model.get_submodule(path)
    bias_path, _, bias = use.bias.rpartition(".")
    weight = getattr(module, name)
    size = weight.shape[1 if use.transposed else 0] // use.rows[1]
    rows = slice(use.rows[0] * size, (use.rows[0] + 1) * size) if use.rows[1] > 1 else slice(None)
    return Matrix(role, module, rows, reads, name, bias if bias_path == path else "", use.transposed)
