"""Residual connections in the graph of a forward pass: which sums are one, how they chain, and where their norms stand.

A sum is a connection when one of its terms is a value x, carried along by nothing but masks, factors and reshaping, and another
was computed from x by matrices of the model, or by something else that mixes positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bathy.sites.graph import Graph, Value
from bathy.sites.hooks import PassedOver
from bathy.sites.matrices import PRODUCTS, Use, attention, uses, with_roles
from bathy.sites.meaning import BOUNDS, FACTORS, JOINS, PIECES, POOLS, SUMS, VIEWS, carriers
from bathy.sites.site import PLACEMENTS, Placement
from bathy.sites.sums import mixed_stream, unlike

MIXES = PRODUCTS | {"avg_pool1d", "avg_pool2d", "_fft_r2c", "_fft_c2c", "_fft_c2r"}
"""Operations without a parameter that make a branch of a shortcut all the same."""
SHORT = VIEWS | PIECES | POOLS | FACTORS | SUMS | JOINS | (BOUNDS - {"relu", "leaky_relu"}) | {"copy", "lerp"}
"""What a shortcut may pass on its way to the sum."""
READING = VIEWS | PIECES | FACTORS | {"cat", "where", "masked_fill"}
"""What may lie between the stream and the norm that a branch begins with."""
FUSED_SUMS = {"addmm", "baddbmm", "addcmul"}
PART = "is part of the branch of another site: it adds to a piece of the stream, or takes the stream away to interpolate"
SCATTERED_SUMS = {"index_add", "scatter_add"}


@dataclass(eq=False)
class Connection:
    """One execution of a residual sum: b = factor · x + branches."""

    b: int
    x: int
    branches: list[int]
    path: str
    uses: list[Use]
    kind: str
    inside: set[int]
    """All values of the branches."""
    shortcut: int
    """The term that is x as it reaches the sum."""
    alone: bool
    """Whether the sum has two terms, so that the only branch is its value a."""
    before: Connection | None = None
    """The connection that this one's stream comes from."""
    begin: Connection | None = None
    """The connection with which this one's stream begins, where that is another."""
    norm: int = -1
    """The norm that reads b, if there is one."""
    others: set[int] = field(default_factory=set)
    """What reads b beside its norm."""
    placement: Placement = "none"
    again: list[Connection] = field(default_factory=list)
    """Later executions of the same modules."""

    @property
    def executions(self) -> list[Connection]:
        """All executions of the same modules, this one first."""
        return [self, *self.again]

    @property
    def a(self) -> int:
        """The value of the branch; -1 where no single value is."""
        return self.branches[0] if self.alone else -1

    def weight(self, graph: Graph) -> float | None:
        """The constant that the sum itself puts on the shortcut; None where it is none."""
        value = graph.values[self.b]
        second = len(value.inputs) > 1 and value.inputs[1] == self.shortcut
        if value.op == "lerp":
            part = value.arguments[2]
            return (part if second else 1 - part) if isinstance(part, int | float) else None
        if value.op == "mean":
            return 1 / len(graph.values[value.inputs[0]].inputs)
        if value.op in FUSED_SUMS:
            return value.beta
        return value.alpha if second and self.alone else 1.0

    def inside_sums(self, graph: Graph) -> set[int]:
        """The sums within a sum of several terms."""
        found, waiting = set[int](), [self.b]
        while waiting:
            for number in graph.values[waiting.pop()].inputs:
                inner = graph.source(number, VIEWS)
                if graph.values[inner].op in SUMS | {"stack"} and _only_reader(graph, inner) >= 0 and inner > self.x:
                    found.add(inner)
                    waiting.append(inner)
        return found


def connections(graph: Graph, passed_over: list[PassedOver]) -> list[Connection]:
    """The sums that are residual connections, chained along the stream; the others go to `passed_over`."""
    found: dict[int, Connection] = {}
    data = graph.data()
    for value in graph.values:
        parts = terms(graph, value) if value.number not in graph.hidden else []
        if len(parts) > 1 and not _absorbed(graph, value):
            result = _connection(graph, value, parts, found)
            if isinstance(result, Connection):
                inner = [number for number in result.inside & set(found) if _is_part(graph, found[number], result.x)]
                passed_over += [PassedOver(found.pop(number).path, PART) for number in inner]
                result.before = _before(graph, result.x, found)
                result.begin = root_of(result.before) if result.before else None
                found[result.b] = result
            elif value.number in data:
                passed_over.append(PassedOver(value.path, result))
    return _without_nested(_fed(list(found.values()), data), passed_over)


def _fed(found: list[Connection], data: set[int]) -> list[Connection]:
    """The connections that see what the model was given, and those whose stream comes to do so: a decoder's first sums."""
    kept: set[int] = set()
    for c in reversed(found):
        if c.b in data or c.b in kept:
            kept.add(c.b)
            kept |= {c.before.b} if c.before else set()
    return [c for c in found if c.b in kept]


def _without_nested(found: list[Connection], passed_over: list[PassedOver]) -> list[Connection]:
    """The connections without those that lie alone within another's branch, as a convolution inside a feed-forward does.

    Several in a row there are a stack of their own, unless they have no weights: then they are the steps of a recurrence.
    """
    chains = Counter(id(root_of(c)) for c in found)
    alone = _alone_within(found)
    small = [c for c in found if chains[id(root_of(c))] == 1 or not c.uses or id(c) in alone]
    weighted = {id(root_of(c)) for c in found if c.uses}
    inner = [c for c in small if id(root_of(c)) not in weighted or any(c.b in o.inside for o in found if o is not c)]
    passed_over += [
        PassedOver(c.path, "lies within the branch of another site, or is a recurrence without weights") for c in inner
    ]
    return [c for c in found if not any(c is other for other in inner)]


def _alone_within(found: list[Connection]) -> set[int]:
    """Those that are the only one of their stream within the branch of another of the same stream."""
    by_sum = {c.b: c for c in found}
    alone = set[int]()
    for outer in found:
        within = [by_sum[number] for number in outer.inside & by_sum.keys() if number != outer.b]
        own = [c for c in within if root_of(c) is root_of(outer)]
        alone |= {id(own[0])} if len(own) == 1 else set()
    return alone


def terms(graph: Graph, value: Value) -> list[int]:
    """What a sum adds, sums within it taken apart; nothing for what is no sum of floating-point tensors."""
    if not value.floating or len(value.shape) < 2 or (value.op in FUSED_SUMS and graph.parameter(value.inputs[0])):
        return []
    if value.op in ("sum", "mean") and graph.values[value.inputs[0]].op == "stack":
        own = list(graph.values[value.inputs[0]].inputs)
    elif value.op == "lerp":
        own = list(value.inputs[:2])
    elif value.op in SUMS | SCATTERED_SUMS | FUSED_SUMS and len(value.inputs) > 1:
        own = [value.inputs[0], value.inputs[-1]]
        if value.op in FUSED_SUMS:
            own[1] = value.number
    else:
        return []
    result = []
    for number in own:
        inner = graph.values[graph.source(number, VIEWS)]
        result += (terms(graph, inner) if inner.number != value.number and _joined(graph, inner, value) else []) or [number]
    return result


def _only_reader(graph: Graph, number: int) -> int:
    readers = graph.users(number, VIEWS)
    return min(readers) if len(readers) == 1 else -1


def _joined(graph: Graph, inner: Value, outer: Value) -> bool:
    """Whether a sum is a term of another that adds one more branch: x + a + a' has one shortcut."""
    if inner.op not in SUMS | {"sum"} or outer.op not in SUMS | {"stack", "sum"}:
        return False
    if _only_reader(graph, inner.number) not in (outer.number, *(graph.consumers[outer.number] if outer.op == "stack" else ())):
        stacks = [number for number in outer.inputs if graph.values[number].op == "stack"]
        if _only_reader(graph, inner.number) not in stacks:
            return False
    stacked = [i for number in outer.inputs if graph.values[number].op == "stack" for i in graph.values[number].inputs]
    others = [i for i in stacked or outer.inputs if graph.source(i, VIEWS) != inner.number]
    before = {y for term in inner.inputs for y in _along(graph, [term], {})}
    return any(graph.values[i].shape == inner.shape and any(graph.depends(i, y) for y in before) for i in others)


def _absorbed(graph: Graph, value: Value) -> bool:
    """Whether this sum is a term of another, which stands for both."""
    reader = _only_reader(graph, value.number)
    if reader >= 0 and graph.values[reader].op == "stack":
        reader = _only_reader(graph, reader)
    return reader >= 0 and _joined(graph, value, graph.values[reader]) and len(terms(graph, graph.values[reader])) > 1


def _connection(graph: Graph, value: Value, parts: list[int], found: dict[int, Connection]) -> Connection | str:
    """The connection that a sum is, or why it is none."""
    reason = "neither operand is computed from the other"
    sizes = {tuple(graph.values[part].shape) for part in parts}
    for shortcut in parts:
        size = graph.values[shortcut].shape
        if len(size) != len(value.shape) or size[-2:] != value.shape[-2:]:
            continue  # a bias, or positions
        others = [part for part in parts if part != shortcut]
        starts = [shortcut]
        if shortcut == value.number:  # the product within addcmul
            starts = [i for i in value.inputs[1:] if value.op == "addcmul" and _fits(graph, i, value)]
        for x in _along(graph, starts, found):
            inside: set[int] = set()
            branches = []
            for other in others:
                way = _way(graph, x, other, value) if other != x else None
                if way is not None and (value.op in FUSED_SUMS | SCATTERED_SUMS or _fits(graph, other, value)):
                    branches.append(other)
                    inside |= way
            if not branches:
                continue
            made = _made(graph, value, x, shortcut, branches, inside, found, len(parts))
            if isinstance(made, Connection):
                return made
            reason = made
            break
    if all(graph.parameter(part) for part in parts[:1]) or all(graph.parameter(part) for part in parts[1:]):
        return "one operand is a parameter"
    if len(sizes) > 1 and reason.startswith("neither"):
        return "shapes differ: " + " and ".join(str(size) for size in sorted(sizes))
    return reason


def _way(graph: Graph, x: int, branch: int, value: Value) -> set[int] | None:
    """What lies between x and a branch; a branch that the sum itself computes, as addmm does, comes from its factors."""
    if branch != value.number:
        return graph.between(x, branch)
    ways = [way for factor in value.inputs[1:] if (way := graph.between(x, factor)) is not None]
    return set[int]().union(*ways) | {value.number} if ways else None


def _fits(graph: Graph, number: int, value: Value) -> bool:
    return graph.values[number].shape == value.shape


def _along(graph: Graph, starts: list[int], found: dict[int, Connection]) -> Iterator[int]:
    """The values that a term of a sum has been, back to the last residual sum."""
    waiting, seen = list(starts), set[int]()
    while waiting:
        number = waiting.pop(0)
        if number in seen:
            continue
        seen.add(number)
        yield number
        if graph.values[number].op in SHORT and number not in found:
            waiting += carriers(graph.values, number)
        elif graph.values[number].op == "bmm":
            waiting += mixed_stream(graph, graph.values[number])


def _made(
    graph: Graph,
    value: Value,
    x: int,
    shortcut: int,
    branches: list[int],
    inside: set[int],
    found: dict[int, Connection],
    count: int,
) -> Connection | str:
    """The connection over these values, or why it is none."""
    if value.number not in branches:
        inside.discard(value.number)
    rounds = [found[number] for number in inside if number in found and not _is_part(graph, found[number], x)]
    if any(_leads(graph, c, x, branches) for c in rounds) and not _beside(graph, rounds, value):
        return f"goes round {len(rounds)} other site{'s' if len(rounds) > 1 else ''}"
    reason = unlike(graph, value, inside)
    if reason:
        return reason
    nested = {number for c in rounds for number in c.inside}
    products = uses(graph, inside)
    if not products and not any(graph.values[number].op in MIXES for number in inside):
        return "no matrix of the model lies between the operands"
    attends = attention(graph, inside)
    kind = _kind(graph, x, attends, bool(products))
    named = with_roles(graph, [use for use in products if use.number not in nested] or products, attends)
    alone = count == 2 and len(branches) == 1 and value.op in SUMS
    return Connection(value.number, x, branches, value.path, named, kind, inside, shortcut, alone)


def _beside(graph: Graph, rounds: list[Connection], value: Value) -> bool:
    """Whether the sites that a branch runs through are a second stream, as in reversible layers: it is added to later on."""
    last = max(rounds, key=lambda c: c.b)
    later = [graph.values[user] for user in graph.users(last.b, VIEWS) if user > value.number]
    return any(user.op in SUMS and user.shape == graph.values[last.b].shape for user in later)


def _leads(graph: Graph, c: Connection, x: int, branches: list[int]) -> bool:
    """Whether the stream gets from x to a branch by way of this connection: then the sum is a long skip."""
    return _carried(graph, c.x, x) and any(_carried(graph, branch, c.b) for branch in branches)


def _is_part(graph: Graph, c: Connection, x: int) -> bool:
    """Whether a sum is part of another's branch: it adds to some of the channels, or is f(x) − x, to be added to x."""
    if graph.values[c.b].shape.numel() < graph.values[c.x].shape.numel():
        return True
    return (c.weight(graph) or 0) < 0 and graph.source(c.x, VIEWS) == graph.source(x, VIEWS)


def root_of(c: Connection) -> Connection:
    """The connection with which the stream of this one begins."""
    return c.begin or c


def _carried(graph: Graph, number: int, x: int) -> bool:
    """Whether a value is x, carried along as a stream: of what is put together, x must be the larger part."""
    waiting, seen = [number], set[int]()
    while waiting:
        current = waiting.pop()
        if current >= x and current not in seen:
            seen.add(current)
            waiting += carriers(graph.values, current)
    carried = {x} & seen
    for current in sorted(seen - {x}):
        sources = carriers(graph.values, current)
        parts = [graph.values[source].shape.numel() for source in sources if source in carried]
        most = graph.values[current].op != "cat" or 2 * sum(parts) > graph.values[current].shape.numel()
        carried |= {current} if parts and most else set()
    return number in carried


def _kind(graph: Graph, x: int, attends: tuple[int, dict[str, int]] | None, matrices: bool) -> str:
    if attends is None:
        return "ffn" if matrices else "mixing"
    return "self_attention" if graph.depends(attends[1]["k"], x) else "cross_attention"


def _before(graph: Graph, x: int, found: dict[int, Connection]) -> Connection | None:
    """The connection from whose sum a stream comes; of several that were put together, the one with most numbers."""
    reached: list[Connection] = []
    waiting, seen = [x], set[int]()
    while waiting:
        number = waiting.pop()
        if number in found:
            reached.append(found[number])
        elif number not in seen:
            seen.add(number)
            waiting += carriers(graph.values, number)
    return max(reached, key=lambda c: (graph.values[c.b].shape.numel(), c.b), default=None)


def link(graph: Graph, connections: Sequence[Connection]) -> None:
    """See where the norms of the connections stand."""
    after: dict[int, list[Connection]] = {}
    for c in connections:
        after.setdefault(id(c.before), []).append(c)
        readers = graph.users(c.b, VIEWS | FACTORS)
        norms = sorted(number for number in readers if graph.values[number].op == "norm")
        if norms:
            c.norm, c.others = norms[0], readers - {norms[0]}
    for c in connections:
        pre, following = _reads_through_norm(graph, c), after.get(id(c), [])
        if following:
            post = c.norm >= 0 and all(_passes(graph, next_.x, c.norm, c.b) for next_ in following)
        else:  # the last norm of a stack is its sites' own only if the site before has one
            post = c.norm >= 0 and not c.others and (c.before.placement in ("post", "both") if c.before else not pre)
        c.placement = PLACEMENTS[pre, post]


def _passes(graph: Graph, x: int, norm: int, b: int) -> bool:
    """Whether the stream gets from b to x through the norm and no other way."""
    waiting, seen, through = [x], set[int](), False
    while waiting:
        number = waiting.pop()
        if number == b:
            return False
        through |= number == norm
        if number > b and number != norm and number not in seen:
            seen.add(number)
            waiting += carriers(graph.values, number)
    return through


def _reads_through_norm(graph: Graph, c: Connection) -> bool:
    """Whether the branch takes the stream through a norm."""
    return any(graph.values[user].op == "norm" for user in graph.users(c.x, READING) if user in c.inside)


def places(graph: Graph, connections: Sequence[Connection]) -> list[Connection]:
    """The connections, later executions of the same modules gathered under the first."""
    first: dict[tuple[object, ...], Connection] = {}
    for c in connections:
        norm = graph.values[c.norm].path if c.norm >= 0 and c.placement in ("post", "both") else ""
        key: tuple[object, ...] = (c.path, norm, *(use.weight for use in c.uses))
        if not c.uses and not norm:
            key = (*key, c.b)  # nothing tells it from another
        if key in first:
            first[key].again.append(c)
        else:
            first[key] = c
    return list(first.values())
