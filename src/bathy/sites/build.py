"""Connections of the graph made into sites: names, stacks, layers, where to watch them, and what stands in the way of ω."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, takewhile

from torch import nn

from bathy.core.residual import Matrix
from bathy.sites.connections import Connection, root_of
from bathy.sites.graph import Graph, Key
from bathy.sites.hooks import Sites, Tap, TracedSite
from bathy.sites.matrices import matrices
from bathy.sites.meaning import PIECES, RESHAPES, SUMS, VIEWS
from bathy.sites.outputs import Walk
from bathy.sites.scalable import outputs_of
from bathy.sites.site import Moment, Output
from bathy.sites.spots import Seen

PASSED = VIEWS
"""What the stream may pass before a matrix reads it."""


@dataclass
class Builder:
    """Turns connections into sites."""

    model: nn.Module
    graph: Graph
    found: Sites
    places: list[Connection]

    def build(self) -> None:
        """Fill `found`."""
        names, stacks = self._names(), self._stacks()
        weights = Counter(use.weight for c in self.places for use in {use.weight: use for use in c.uses}.values())
        for stack, chain in stacks.items():
            layers = layers_of(chain)
            for index, (c, layer) in enumerate(zip(chain, layers, strict=True), 1):
                shared = [use.weight for use in c.uses if weights[use.weight] > 1]
                self.found.sites.append(self._site(c, names[id(c)], stack, layer, index, shared))
        order = {id(c): number for number, c in enumerate(self.places)}
        by_name = {names[id(c)]: order[id(c)] for c in self.places}
        self.found.sites.sort(key=lambda site: by_name[site.name])
        self._note_pieces(stacks)
        self._note_siblings()

    def _site(self, c: Connection, name: str, stack: str, layer: int, index: int, shared: list[str]) -> TracedSite:
        norm = self._norm_path(c) if c.placement in ("post", "both") else ""
        taps = self._taps(c, norm)
        ends = Walk(self.graph, c).ends()
        inside = [execution.inside for execution in c.executions]
        outputs, unclear = ([], ends.unclear) if ends.unclear else outputs_of(self.model, self.graph, ends, inside)
        unclear = unclear or self._used_elsewhere(outputs)
        skip = self._skip(c)
        return TracedSite(
            name=name,
            stack=stack,
            kind=c.kind,
            layer=layer,
            index=index,
            placement=c.placement,
            post=self.model.get_submodule(norm) if norm else None,
            matrices=self._matrices(c),
            width=self.graph.values[c.b].shape[-1],
            calls=len(c.executions),
            streams=_streams(c),
            skip=1.0 if skip is None else skip,
            obstacle=self._obstacle(c, norm, taps, skip),
            stuck=self._stuck(c, shared),
            outputs=outputs,
            unclear=unclear,
            taps=taps,
            spots=[self._seen(execution, skip) for execution in c.executions],
            whole=skip is not None,
            found=self.found,
        )

    @cached_property
    def _branches(self) -> set[int]:
        """The values of all branches, in all their executions."""
        return set[int]().union(*(execution.inside for c in self.places for execution in c.executions))

    @cached_property
    def _parameters(self) -> dict[str, int]:
        return {value.name: value.number for value in self.graph.values if value.op == "parameter"}

    def _used_elsewhere(self, outputs: Iterable[Output]) -> str:
        """Why a factor on these parameters would change more than branches: one is an embedding, or the head's, too."""
        for output in outputs:
            number = self._parameters.get(output.path)
            users = set[int]() if number is None else self.graph.users(number, VIEWS | PIECES)
            others = [user for user in users - self._branches if user not in self.graph.hidden]
            if others:
                value = self.graph.values[min(others)]
                return (
                    f"its {output.path} is also used by {value.op} in {value.path or 'the model itself'}, outside the branches"
                )
        return ""

    def _seen(self, c: Connection, skip: float | None) -> Seen:
        """Where one execution has x, or what a mask or a gate left of it, and what is added to it."""
        values = self.graph.values
        plain = values[c.b].op in SUMS and c.b not in c.branches and (not c.alone or self._branch_factor(c) == 1)
        x = c.x if skip is not None else c.shortcut
        return Seen(values[x].spot, tuple(values[n].spot for n in (c.branches if plain else [c.b])), whole=not plain)

    def _matrices(self, c: Connection) -> list[Matrix]:
        """The branch's matrices that are parameters of their own."""
        return matrices(self.model, [use for use in c.uses if not use.made], self._reads(c))

    def _skip(self, c: Connection) -> float | None:
        """The constant on the shortcut; None where it is none, or the shortcut is reshaped, masked or gated."""
        value, x = self.graph.values[c.b], self.graph.values[c.x]
        if (x.shape.numel(), x.shape[-1]) != (value.shape.numel(), value.shape[-1]):
            return None
        factor, own = self.graph.factor(c.x, c.shortcut), c.weight(self.graph)
        return None if factor is None or own is None else factor * own

    def _norm_path(self, c: Connection) -> str:
        """The module that is the norm: it says so, or all it does is call a norm; '' where the norm is a bare function."""
        path = self.graph.values[c.norm].path
        start = self.graph.values[c.norm].inputs[0]
        takers = [key.path for key, _ in self.graph.places[start] if key.side == "input" and len(key.where) == 2]
        givers = [key.path for key, _ in self.graph.places[c.norm] if key.side == "output" and key.where == ()]
        return path or next((taker for taker in takers if taker in givers), "")

    def _reads(self, c: Connection) -> set[int]:
        """Inputs of matrices that are the stream, or the stream through what stands before the branch: norm, shift, scale."""
        stream = self.graph.source(c.x, VIEWS)
        return {use.data for use in c.uses if self._comes_from(use.data, stream)}

    def _comes_from(self, number: int, stream: int) -> bool:
        while number > stream:
            value = self.graph.values[number]
            alone = value.op in ("mul", "add", "div") and all(self.graph.parameter(other) for other in value.inputs[1:])
            if not alone and value.op not in PASSED | {"norm"}:
                return False
            number = value.inputs[0]
        return number == stream

    def _taps(self, c: Connection, norm: str) -> dict[Moment, Tap]:
        """Where modules show x, a, b and the output, each exactly once in every execution."""
        post = c.placement in ("post", "both")
        simple = c.alone and self._branch_factor(c) == 1
        branch = self._shown(c, "a", before=c.b)[-1:] if simple else []
        inputs = self._shown(c, "x", before=self._end(c, branch))  # also where a later module takes it once more
        inside = [key for key in inputs if key.side == "input"]
        sums = self._shown(c, "b")
        start = [self.graph.values[e.norm].inputs[0] for e in c.executions] if post else []
        factor = self.graph.factor(c.b, start[0]) if post else 1.0
        at_norm = (
            [key for key in self._showing(start) if key.path == norm and len(key.where) == 2 and key.side == "input"]
            if post
            else []
        )
        keys: dict[Moment, list[Key]] = {
            "input": (inside or inputs)[-1:],
            "branch": branch,
            "sum": at_norm if factor is not None else [],
            "output": self._shown(c, "norm"),
        }
        if not post:
            keys |= {"sum": sums, "output": sums}
        lost = {self.graph.memory(number) for number in self.graph.values[c.b].overwrites}
        copied = {"input": self.graph.memory(c.x) in lost, "branch": self.graph.memory(c.a) in lost if simple else False}
        factors = {"sum": factor or 1.0}
        return {
            moment: self._tap(shown[0], copied.get(moment, False), factors.get(moment, 1.0))
            for moment, shown in keys.items()
            if shown
        }

    def _end(self, c: Connection, branch: list[Key]) -> int:
        """The last value computed before the branch is shown, or of the branch where no module shows it: x comes before it."""
        shown = [then - 1 for number in c.inside for key, then in self.graph.places[number] if key in branch]
        return min([max(c.inside), *shown])

    def _tap(self, key: Key, copy: bool, factor: float) -> Tap:
        return Tap(self.model.get_submodule(key.path), key.side, key.where, copy, factor)

    def _branch_factor(self, c: Connection) -> float:
        """The constant on the branch that the sum itself applies."""
        value = self.graph.values[c.b]
        return abs(value.alpha) if len(value.inputs) > 1 and value.inputs[1] == c.a else 1.0

    def _shown(self, c: Connection, attribute: str, before: int | None = None) -> list[Key]:
        """Places that show this value of every execution and nothing else, in order; `before` a value is computed.

        Where none shows the value itself, those that show it in another shape of the same width.
        """
        wanted = [getattr(execution, attribute) for execution in c.executions]
        return self._showing(wanted, before) or self._showing([self._reshaped(number) for number in wanted], before)

    def _showing(self, wanted: list[int], before: int | None = None) -> list[Key]:
        if not wanted or min(wanted) < 0:
            return []
        keys = [key for key, then in self.graph.places[wanted[0]] if before is None or then <= before]
        keys = [key for key in keys if len(key.where) <= 2]  # deeper ones come and go with the call
        return [key for key in dict.fromkeys(keys) if self.graph.seen[key] == wanted]

    def _reshaped(self, number: int) -> int:
        """The value before it was reshaped, if that has the same width; else -1."""
        while self.graph.values[number].op in RESHAPES:
            number = self.graph.values[number].inputs[0]
            if self.graph.places[number] and self.graph.values[number].shape:
                return number
        return -1

    def _obstacle(self, c: Connection, norm: str, taps: dict[Moment, Tap], skip: float | None) -> str:
        """Why no ω can be hooked in."""
        if c.placement not in ("post", "both"):
            return "no norm reads its sum alone"
        if c.others:
            value = self.graph.values[min(c.others)]
            return f"its sum is read by {value.op} in {value.path or 'the model itself'} too, not by its norm alone"
        if not norm:
            return "its norm is a function call, not a module that hooks can be put on"
        if skip is None or skip != 1:
            return "the model itself scales, masks or reshapes its shortcut"
        start = self.graph.values[c.norm].inputs[0]
        if self.graph.factor(c.b, start) is None or self.graph.values[start].shape[-1] != self.graph.values[c.b].shape[-1]:
            return f"its sum reaches the norm {norm} masked, gated or transposed"
        sizes = {p.numel() for p in self.model.get_submodule(norm).parameters(recurse=False) if p.dim()}
        if sizes - {1, self.graph.values[c.b].shape[-1]}:
            return (
                f"its norm {norm} has {max(sizes)} numbers, its stream {self.graph.values[c.b].shape[-1]}: channels come first"
            )
        if "sum" not in taps:
            return f"its norm {norm} serves other places too"
        return "" if "input" in taps else "no module takes or gives its shortcut"

    def _stuck(self, c: Connection, shared: list[str]) -> str:
        """Why an ω could not be folded away: some consumer of the stream cannot be rescaled."""
        if c.placement == "both":
            return "its branch reads the stream through a norm of its own"
        if max(_streams(c).count(stream) for stream in _streams(c)) > 1:
            return f"it runs {len(c.executions)} times on the same weights"
        if shared:
            return f"its matrix {shared[0]} is used elsewhere too"
        if c.before is None:
            return ""
        reading = [use for use in c.uses if use.data in self._reads(c)]
        made = [use.weight for use in reading if use.made or use.opaque]
        if made:
            return f"its matrix {made[0]} is computed from others, so that its inputs cannot be rescaled"
        stream = self.graph.source(c.x, VIEWS)
        others = self.graph.users(stream, VIEWS) - {use.number for use in reading} - {c.b, *c.inside_sums(self.graph)}
        if others:
            value = self.graph.values[min(others)]
            return f"the stream before it is also read by {value.op} in {value.path or 'the model itself'}"
        returned = {self.graph.source(number, VIEWS) for number in self.graph.outputs}
        return "the model returns the stream before it" if stream in returned else ""

    def _names(self) -> dict[int, str]:
        """The path of each addition; where several share one, that of the branch's matrices if deeper, else with its kind."""
        counts = Counter(c.path for c in self.places)
        names = [c.path if counts[c.path] == 1 and c.path else _inner_path(c) for c in self.places]
        return {id(c): name for c, name in zip(self.places, numbered(names), strict=True)}

    def _stacks(self) -> dict[str, list[Connection]]:
        """The chains of connections by name: the module that has the list of their layers."""
        chains: dict[int, list[Connection]] = {}
        for c in self.places:
            chains.setdefault(id(root_of(c)), []).append(c)
        return dict(zip(numbered(self._stack(chain) for chain in chains.values()), chains.values(), strict=True))

    def _stack(self, chain: list[Connection]) -> str:
        parts = common([c.path.split(".") for c in chain])
        lists = nn.ModuleList | nn.Sequential | nn.ModuleDict
        while parts and (parts[-1].isdigit() or isinstance(self.model.get_submodule(".".join(parts)), lists)):
            parts = parts[:-1]
        return ".".join(parts) or "model"

    def _note_pieces(self, stacks: dict[str, list[Connection]]) -> None:
        """Stacks whose sites lie in one list of like layers belong together, though something cuts the stream between them."""
        owners: dict[str, list[str]] = {}
        for stack, chain in stacks.items():
            owner = self._list_of(chain)
            if owner:
                owners.setdefault(owner, []).append(stack)
        for owner, pieces in owners.items():
            if len(pieces) > 1:
                self.found.groups |= dict.fromkeys(pieces, owner)
                self.found.notes.append(
                    f"{owner}: its layers form {len(pieces)} stacks ({', '.join(pieces[:4])}), as something more than "
                    "a norm, a mask or a factor lies between them; Σβ² is summed over them"
                )

    def _list_of(self, chain: list[Connection]) -> str:
        """The outermost list of layers of one class in which all sites of a chain lie."""
        parts = common([c.path.split(".") for c in chain])
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if isinstance(self.model.get_submodule(path), nn.ModuleList | nn.Sequential) and len(parts) > end:
                return path
        return ""

    def _note_siblings(self) -> None:
        """Name the layers of a list that have no site although others of their class have."""
        having = {c.path for c in self.places}
        for path, module in self.model.named_modules():
            if isinstance(module, nn.ModuleList | nn.Sequential):
                children = {f"{path}.{name}".lstrip("."): type(child) for name, child in module.named_children()}
                with_sites = {kind for name, kind in children.items() if _within(having, name)}
                without = [name for name, kind in children.items() if kind in with_sites and not _within(having, name)]
                if without:
                    self.found.notes.append(f"{', '.join(without[:6])}: no residual there, unlike in its siblings; did it run?")


def _streams(c: Connection) -> tuple[int, ...]:
    """The stream of each execution, numbered from 0: those that come from one beginning are one."""
    roots = [id(root_of(execution)) for execution in c.executions]
    order = {root: number for number, root in enumerate(dict.fromkeys(roots))}
    return tuple(order[root] for root in roots)


def _within(paths: set[str], path: str) -> bool:
    return any(other == path or other.startswith(f"{path}.") for other in paths)


def _inner_path(c: Connection) -> str:
    """The path of the branch's matrices if it lies deeper than the addition's, else that with the connection's kind."""
    inner = ".".join(common([use.weight.split(".")[:-1] for use in c.uses]))
    return inner if len(inner) > len(c.path) else f"{c.path}.{c.kind}".lstrip(".")


def layers_of(chain: list[Connection]) -> list[int]:
    """Layer of each connection, from 1: by the part of the path that counts them, else anew at each of the first's kind."""
    paths = [c.path.split(".") for c in chain]
    depth = len(common(paths)) + 1
    keys = [".".join(path[:depth]) for path in paths]
    if 1 < len(set(keys)) < len(chain):
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys), 1)}
        return [numbers[key] for key in keys]
    return list(accumulate(int(c.kind == chain[0].kind) for c in chain))


def common(paths: list[list[str]]) -> list[str]:
    """The parts that all paths begin with."""
    return [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))]


def numbered(names: Iterable[str]) -> list[str]:
    """The names with .2, .3 … behind repeated ones."""
    counts: Counter[str] = Counter()
    result = []
    for name in names:
        counts[name] += 1
        result.append(name if counts[name] == 1 else f"{name}.{counts[name]}")
    return result
