"""Residual connections in the graph of a forward pass: which additions are one, how they chain, and where their norms stand.

An addition x + a is a connection when a was computed from x by matrices of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bathy.sites.graph import DROPOUTS, VIEWS, Graph, Value
from bathy.sites.hooks import PassedOver
from bathy.sites.matrices import Use, attention, uses, with_roles
from bathy.sites.site import POSITIONS, Position

PLAIN = VIEWS | DROPOUTS
"""What the stream may pass unchanged."""


@dataclass(eq=False)
class Connection:
    """One execution of a residual addition: b = x + a."""

    b: int
    x: int
    a: int
    path: str
    uses: list[Use]
    kind: str
    scaled: bool
    """Whether the model itself multiplies the shortcut."""
    in_place: int
    """The operand that the addition overwrites, or -1."""
    before: Connection | None = None
    """The connection that this one's stream comes from."""
    onward: int = -1
    """The sum that goes on as the stream, where parallel branches are added to b; else b itself."""
    norm: int = -1
    """The norm that alone reads b, if there is one."""
    position: Position = "none"
    again: list[Connection] = field(default_factory=list)
    """Later executions of the same modules."""

    @property
    def executions(self) -> list[Connection]:
        """All executions of the same modules, this one first."""
        return [self, *self.again]


def connections(graph: Graph, passed_over: list[PassedOver]) -> list[Connection]:
    """The additions that are residual connections; the others go to `passed_over`."""
    found: list[Connection] = []
    for value in graph.values:
        if value.op in ("add", "addcmul") and value.floating and len(value.inputs) > 1:
            result = _connection(graph, value, {c.b for c in found})
            if isinstance(result, Connection):
                found.append(result)
            elif not _parallel(graph, value, found):
                passed_over.append(PassedOver(value.path, result))
            else:
                passed_over.append(
                    PassedOver(value.path, "a second branch of the same shortcut: counted with the stream alone")
                )
    return found


def _parallel(graph: Graph, value: Value, found: list[Connection]) -> bool:
    """Whether (x + a) + a' adds another branch of the same x, as parallel layers do; the stream then goes on from here."""
    for total, other in (value.inputs[:2], value.inputs[1::-1]):
        for c in found:
            if c.b == total and graph.users(total, set()) == {value.number} and graph.between(c.x, other) is not None:
                c.onward = value.number
                return True
    return False


def _connection(graph: Graph, value: Value, sums: set[int]) -> Connection | str:
    """The connection that an addition is, or why it is none."""
    u, v = value.inputs[:2]
    if graph.parameter(u) or graph.parameter(v):
        return "one operand is a parameter"
    if graph.values[u].shape != graph.values[v].shape:
        return f"shapes differ: {tuple(graph.values[u].shape)} and {tuple(graph.values[v].shape)}"
    for shortcut, branch in ((u, v), (v, u)):
        x, scaled = _shortcut(graph, shortcut, branch)
        if x < 0:
            continue
        inside = graph.between(x, branch) or set()
        round_others = inside & sums
        if round_others:
            return f"goes round {len(round_others)} other site{'s' if len(round_others) > 1 else ''}"
        found = uses(graph, inside)
        if not found:
            return "no matrix of the model lies between the operands"
        attends = attention(graph, inside)
        scaled |= value.op == "addcmul" or value.name == "alpha"
        overwritten = u if value.in_place else -1
        named = with_roles(graph, found, attends)
        return Connection(value.number, x, branch, value.path, named, _kind(graph, x, attends), scaled, overwritten)
    return "neither operand is computed from the other"


def _shortcut(graph: Graph, operand: int, other: int) -> tuple[int, bool]:
    """The value behind `operand` that `other` is computed from, and whether it was multiplied on the way; -1 for none."""
    scaled = False
    while graph.between(operand, other) is None or operand == other:
        value = graph.values[operand]
        if value.op == "mul" and all(graph.parameter(number) for number in value.inputs[1:]):
            scaled = True
        elif value.op not in VIEWS:
            return -1, False
        operand = value.inputs[0]
    return operand, scaled


def _kind(graph: Graph, x: int, attends: tuple[int, dict[str, int]] | None) -> str:
    if attends is None:
        return "ffn"
    return "self_attention" if graph.between(x, attends[1]["k"]) is not None else "encoder_attention"


def link(graph: Graph, connections: Sequence[Connection]) -> None:
    """Chain the connections along the stream and see where their norms stand."""
    by_sum = {c.b: c for c in connections} | {c.onward: c for c in connections if c.onward >= 0}
    for c in connections:
        c.before = by_sum.get(graph.source(c.x, PLAIN | {"norm"}))
        readers = graph.users(c.b, PLAIN)
        if len(readers) == 1 and graph.values[min(readers)].op == "norm":
            c.norm = min(readers)
    after = {id(c.before): c for c in connections if c.before}
    for c in connections:
        pre = _reads_through_norm(graph, c)
        following = after.get(id(c))
        if following:
            post = c.norm >= 0 and graph.source(following.x, PLAIN) == c.norm
        else:  # the last norm of a stack is its sites' own only if the site before has one
            post = c.norm >= 0 and (c.before.position in ("post", "both") if c.before else not pre)
        c.position = POSITIONS[pre, post]


def _reads_through_norm(graph: Graph, c: Connection) -> bool:
    """Whether the branch takes the stream through a norm."""
    inside = graph.between(c.x, c.a) or set()
    return any(graph.values[user].op == "norm" for user in graph.users(c.x, PLAIN) if user in inside)


def places(graph: Graph, connections: Sequence[Connection]) -> list[Connection]:
    """The connections, later executions of the same modules gathered under the first."""
    first: dict[tuple[object, ...], Connection] = {}
    for c in connections:
        norm = graph.values[c.norm].path if c.norm >= 0 else ""
        key = (c.path, norm, *(use.weight for use in c.uses))
        if key in first:
            first[key].again.append(c)
        else:
            first[key] = c
    return list(first.values())
