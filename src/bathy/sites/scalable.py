"""The parameters at which a branch's ways end, as outputs that can be scaled: matrices, experts, γ, and what makes a matrix."""

from __future__ import annotations

from torch import nn

from bathy.sites.graph import Graph
from bathy.sites.matrices import Use
from bathy.sites.meaning import degree
from bathy.sites.outputs import Ends
from bathy.sites.site import Output


def outputs_of(model: nn.Module, graph: Graph, ends: Ends, inside: list[set[int]]) -> tuple[list[Output], str]:
    """The outputs of a branch, or why they cannot be scaled; `inside`: its values in each execution, the first one's ends."""
    found: dict[str, Output] = {}
    for use in ends.uses.values():
        names = [use.weight] if not use.made else _scaling(graph, use)
        if not names:
            return [], f"its matrix {use.weight} is normalised, so that a factor on its parameters is undone"
        if use.rows != (0, -1):
            return [], f"its output is part of {use.weight} only"
        for name in names + _idle_siblings(model, names[0], graph, inside):
            found[name] = _output(model, name)
    for path in ends.norms:
        norm = model.get_submodule(path)
        gamma = _gamma(norm, path)
        if gamma is None:
            return [], f"it ends in the norm {path}, which has no γ"
        found[gamma.path] = gamma
    return list(found.values()), ""


def _output(model: nn.Module, name: str) -> Output:
    path, _, own = name.rpartition(".")
    return Output(model.get_submodule(path), own, name)


def _scaling(graph: Graph, use: Use) -> list[str]:
    """A parameter by which a matrix that is made from several, as under `weight_norm`, grows in proportion."""
    for value in graph.values:
        if value.op == "parameter" and value.name in use.made and degree(graph.values, use.operand, value.number) == 1:
            return [value.name]
    return []


def _idle_siblings(model: nn.Module, name: str, graph: Graph, inside: list[set[int]]) -> list[str]:
    """The same parameter of sibling experts: modules of one list, some of which no token of this batch was sent to.

    A list whose other modules serve other places is one of layers, of which some may be left out: they are no experts.
    """
    parts = name.split(".")
    users = {value.name: set(graph.consumers[value.number]) for value in graph.values if value.op == "parameter"}
    for depth in range(len(parts) - 2, 0, -1):
        if not parts[depth].isdigit():
            continue
        owner = model.get_submodule(".".join(parts[:depth]))
        others = [".".join([*parts[:depth], child, *parts[depth + 1 :]]) for child, _ in owner.named_children()]
        others = [other for other in others if other != name and _exists(model, other, name)]
        if any(users.get(other, set()).difference(*inside) for other in others):
            return []
        return [other for other in others if not users.get(other, set()) & inside[0]]
    return []


def _exists(model: nn.Module, name: str, like: str) -> bool:
    try:
        return model.get_parameter(name).shape == model.get_parameter(like).shape
    except AttributeError:
        return False


def _gamma(norm: nn.Module, path: str) -> Output | None:
    """γ of a norm: its output grows with γ, or with 1 + γ."""
    for name, value in norm.named_parameters():
        fresh = value.detach()
        if "bias" in name or "beta" in name or not fresh.numel():
            continue
        offset = 1.0 if bool((fresh == 0).all()) else 0.0
        owner, _, own = name.rpartition(".")
        return Output(norm.get_submodule(owner), own, f"{path}.{name}", offset, norm=True)
    return None
