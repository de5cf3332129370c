"""The matrices of a branch and what they do: q, k, v and out of attention, fc1 and fc2 of a feed-forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import nn

from bathy.core.residual import Matrix
from bathy.sites.graph import Graph, Value
from bathy.sites.meaning import LOOKUPS, VIEWS
from bathy.sites.replay import ALL_ROWS, Rows, channels, layout

PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "_grouped_mm", "mv", "addmv", "linear", "mkldnn_linear", "_scaled_mm", "matmul"}
"""Matrix products, of a parameter or of two activations."""
CONVOLUTIONS = {"convolution", "mkldnn_convolution", "_convolution", "convolution_overrideable"}
RECURRENT = {"rnn", "mkldnn_rnn_layer", "lstm", "gru", "rnn_tanh", "_cudnn_rnn", "_thnn_fused_lstm_cell"}
FUSED_ATTENTION = "_scaled_dot_product"
"""How the names of torch's own attention begin."""
WEIGHTING = {"_softmax", "_safe_softmax", "softmax", "exp", "sigmoid", "relu", "elu", "_log_softmax"}
DEEPEST_WEIGHT = 60
"""Operations that may make a matrix from parameters."""


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
    rows: Rows = ALL_ROWS
    """First row and the row after the last."""
    made: tuple[str, ...] = ()
    """Parameters from which the matrix itself is computed, as under `weight_norm`; empty where it is a parameter."""
    conv: bool = False
    opaque: bool = False
    """Whether more than a product happens: a recurrence, a bilinear form, attention over learned keys, a kernel not torch's."""
    operand: int = -1
    """The value that is the matrix."""


def uses(graph: Graph, numbers: Iterable[int]) -> list[Use]:
    """The products with matrices of the model among the values, in order."""
    return [use for number in sorted(numbers) for use in uses_of(graph, graph.values[number])]


def uses_of(graph: Graph, value: Value) -> list[Use]:
    """The products with matrices of the model that one operation makes."""
    if value.number not in graph.uses:
        graph.uses[value.number] = _uses_of(graph, value)
    return graph.uses[value.number]


def _uses_of(graph: Graph, value: Value) -> list[Use]:
    if value.op in CONVOLUTIONS:
        names = made_from(graph, value.inputs[1])
        bias = graph.parameter(value.inputs[2]) if len(value.inputs) > 2 else ""
        return [_use(graph, value, value.inputs[0], value.inputs[1], names, bias, conv=True)] if names else []
    if value.op in RECURRENT | {"_trilinear"} or value.op.startswith(FUSED_ATTENTION) or _foreign(value):
        weights = [i for i in value.inputs if graph.parameter(i) and len(graph.values[i].shape) > 1]
        given = [i for i in value.inputs if not graph.parameter(i)]
        return [Use(value.number, given[0], graph.parameter(i), opaque=True, operand=i) for i in weights[:2] if given]
    if value.op not in PRODUCTS or value.part[0]:
        return []
    factors = value.inputs[1:3] if value.op in ("addmm", "baddbmm", "addmv") else value.inputs[:2]
    for weight, data in (factors[::-1], factors):
        names = made_from(graph, weight)
        if names:
            bias = graph.parameter(value.inputs[0]) if value.op == "addmm" else _bias_after(graph, value)
            return [_use(graph, value, data, weight, names, bias, left=weight == factors[0])]
    return []


def _foreign(value: Value) -> bool:
    """Whether an operation is not torch's own: a kernel of some library, which may do anything with the matrices it takes."""
    return getattr(value.function, "namespace", "aten") not in ("aten", "prims", "prim")


def _use(
    graph: Graph,
    value: Value,
    data: int,
    operand: int,
    names: tuple[str, ...],
    bias: str,
    conv: bool = False,
    left: bool = False,
) -> Use:
    """A product with one parameter, seen through views, or with a matrix made from several."""
    own = graph.parameter_part(operand)
    if not own:
        return Use(value.number, data, names[0], bias, made=names, conv=conv, operand=operand)
    transposed, rows = (False, ALL_ROWS) if conv else layout(graph, operand, left)
    return Use(value.number, data, own, bias, transposed=transposed, rows=rows, conv=conv, operand=operand)


def _bias_after(graph: Graph, value: Value) -> str:
    """The parameter that is added to a product next."""
    users = graph.users(value.number, VIEWS)
    adds = [graph.values[user] for user in users if graph.values[user].op == "add" and len(users) == 1]
    names = [graph.parameter(i) for add in adds for i in add.inputs if graph.parameter(i)]
    return names[0] if names and graph.values[graph.source(adds[0].inputs[-1], VIEWS)].shape.numel() == value.shape[-1] else ""


def made_from(graph: Graph, number: int) -> tuple[str, ...]:
    """Names of the parameters from which alone a matrix is computed; none where anything else enters, or it is no matrix."""
    names: dict[str, int] = {}
    waiting, seen = [number], set[int]()
    while waiting:
        value = graph.values[waiting.pop()]
        if value.op == "input" or value.op == "embedding" or len(seen) > DEEPEST_WEIGHT:
            return ()
        if value.op == "parameter":
            names[value.name] = len(value.shape)
        if value.number not in seen:
            seen.add(value.number)
            waiting += value.inputs[:1] if _chosen(graph, value) else value.inputs
    return tuple(names) if max(names.values(), default=0) > 1 else ()


def _chosen(graph: Graph, value: Value) -> bool:
    """Whether a value is some of the matrices of experts, which are one parameter of three dimensions: chosen, not computed."""
    return value.op in LOOKUPS and bool(graph.parameter(value.inputs[0])) and len(graph.values[value.inputs[0]].shape) > 2


def attention(graph: Graph, branch: set[int]) -> tuple[int, dict[str, int]] | None:
    """Where the branch attends, and the values that are its q, k and v there; None for a branch without attention.

    Attention is a product of two activations, one of which was itself computed from such a product: of scores, or of k and v.
    """
    seen: list[Value] = []
    for number in sorted(branch):
        value = graph.values[number]
        if value.op.startswith(FUSED_ATTENTION):
            return number, dict(zip("qkv", value.inputs[:3], strict=True))
        if value.op in PRODUCTS and not uses_of(graph, value):
            factors = value.inputs[-2:] if value.op in ("baddbmm", "addmm") else value.inputs[:2]
            for first in reversed(seen):
                found = _chained(graph, first, factors)
                if found:
                    return number, found
            seen.append(value)
    return None


def _chained(graph: Graph, first: Value, factors: tuple[int, ...]) -> dict[str, int] | None:
    """q, k and v of two products of which the second takes the first; None where it does not."""
    scores = first.inputs[-2:] if first.op in ("baddbmm", "addmm") else first.inputs[:2]
    for position, factor in enumerate(factors):
        way = graph.between(first.number, factor)
        if way is not None:
            other = factors[1 - position]
            if any(graph.values[number].op in WEIGHTING for number in way):
                return {"q": scores[0], "k": scores[1], "v": other}
            return {"q": other, "k": scores[0], "v": scores[1]}
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
        origin, rows = _origin(graph, start, {use.number: use for use in found})
        named.setdefault(origin, []).extend(replace(use, role=role, rows=rows) for use in found if use.number == origin)
    result, beside = [], []
    for use in found:
        if use.number in named:
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
    if len(parts) == 1 or (len(parts) == len({use.rows for use in parts}) and ALL_ROWS not in {use.rows for use in parts}):
        return parts if len(parts) > 1 else [replace(parts[0], rows=parts[0].rows)]
    return [replace(parts[0], role="".join(use.role for use in parts), rows=ALL_ROWS)]


def _origin(graph: Graph, number: int, targets: dict[int, Use]) -> tuple[int, Rows]:
    """The nearest of the matrix products that a value comes from, and which of its rows made it; -1 for none."""
    seen: set[int] = set()
    waiting: list[tuple[int, ...]] = [(number,)]
    while waiting:
        way = waiting.pop(0)
        if way[-1] in targets:
            use = targets[way[-1]]
            return way[-1], channels(graph, way[::-1], use.rows, use.conv)
        if way[-1] not in seen:
            seen.add(way[-1])
            waiting += [(*way, source) for source in graph.values[way[-1]].inputs]
    return -1, ALL_ROWS


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
    rows = slice(None) if use.rows == ALL_ROWS else slice(*use.rows)
    return Matrix(role, module, rows, reads, name, bias if bias_path == path else "", use.transposed)
