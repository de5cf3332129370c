"""Find the residual sites of any model from one forward pass, without reading or editing its code.

Sites that hand each other the stream, with nothing but norms, dropout and reshaping between them, are a stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, takewhile

from torch import nn

from bathy.errors import ModelError
from bathy.sites.batch import Batch, on_device_of
from bathy.sites.connections import PLAIN, Connection, connections, link, places
from bathy.sites.graph import VIEWS, Graph, Key, record
from bathy.sites.hooks import Sites, Tap, TracedSite, hooked_sites
from bathy.sites.matrices import matrices
from bathy.sites.site import Moment


def find_sites(model: nn.Module, batch: Batch) -> Sites:
    """The residual sites of any model in the order of execution, from one forward pass; print them for a table.

    The result's `passed_over` lists the additions that are no residual, and why. The model stays as it was.
    """
    known = hooked_sites(model)
    if known:
        return known
    batch = on_device_of(model, batch)
    graph = record(model, batch)
    found = Sites(batch)
    connected = connections(graph, found.passed_over)
    if not connected:
        why = f"; of the first, {found.passed_over[0].reason}" if found.passed_over else ""
        seen = f"{len(found.passed_over)} additions of tensors seen, none of them one{why}"
        raise ModelError(f"{type(model).__name__} has no residual connection that can be found: {seen}")
    link(graph, connected)
    _Builder(model, graph, found, places(graph, connected)).build()
    return found


@dataclass
class _Builder:
    """Turns connections into sites: names, stacks, layers, taps, and what stands in the way of ω."""

    model: nn.Module
    graph: Graph
    found: Sites
    places: list[Connection]

    def build(self) -> None:
        """Fill `found`."""
        names, stacks = self._names(), self._stacks()
        weights = Counter(use.weight for c in self.places for use in {use.weight: use for use in c.uses}.values())
        for stack, chain in stacks.items():
            layers = _layers(chain)
            for index, (c, layer) in enumerate(zip(chain, layers, strict=True), 1):
                shared = [use.weight for use in c.uses if weights[use.weight] > 1]
                self.found.sites.append(self._site(c, names[id(c)], stack, layer, index, shared))
        order = {id(c): number for number, c in enumerate(self.places)}
        by_name = {names[id(c)]: order[id(c)] for c in self.places}
        self.found.sites.sort(key=lambda site: by_name[site.name])

    def _site(self, c: Connection, name: str, stack: str, layer: int, index: int, shared: list[str]) -> TracedSite:
        norm = self._norm_path(c) if c.position in ("post", "both") else ""
        taps = self._taps(c, norm)
        return TracedSite(
            name=name,
            stack=stack,
            kind=c.kind,
            layer=layer,
            index=index,
            position=c.position,
            post=self.model.get_submodule(norm) if norm else None,
            matrices=matrices(self.model, c.uses, self._reads(c)),
            width=self.graph.values[c.b].shape[-1],
            calls=len(c.executions),
            obstacle=self._obstacle(c, norm, taps),
            stuck=self._stuck(c, shared),
            taps=taps,
            found=self.found,
        )

    def _norm_path(self, c: Connection) -> str:
        """The module that is the norm: it says so, or all it does is call a norm; '' where the norm is a bare function."""
        path = self.graph.values[c.norm].path
        takers = [key.path for key, _ in self.graph.places[c.b] if key.side == "input" and key.where == ("args", 0)]
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
            if not alone and value.op not in PLAIN | {"norm"}:
                return False
            number = value.inputs[0]
        return number == stream

    def _taps(self, c: Connection, norm: str) -> dict[Moment, Tap]:
        """Where modules show x, a, b and the output, each exactly once in every execution."""
        post = c.position in ("post", "both")
        inputs = self._shown(c, "x")
        inside = [key for key in self._shown(c, "x", before=c.a) if key.side == "input"]
        sums = self._shown(c, "b")
        keys: dict[Moment, list[Key]] = {
            "input": (inside or inputs)[-1:],
            "branch": self._shown(c, "a"),
            "sum": [key for key in sums if key == Key(norm, "input", ("args", 0))] if post else sums,
            "output": self._shown(c, "norm") if post else sums,
        }
        copied = {"input": c.in_place == c.x, "branch": c.in_place == c.a}
        return {
            moment: Tap(self.model.get_submodule(shown[0].path), shown[0].side, shown[0].where, copied.get(moment, False))
            for moment, shown in keys.items()
            if shown
        }

    def _shown(self, c: Connection, attribute: str, before: int | None = None) -> list[Key]:
        """Places that show this value of every execution and nothing else, in order; `before` a value is computed."""
        wanted = [getattr(execution, attribute) for execution in c.executions]
        keys = [key for key, then in self.graph.places[wanted[0]] if before is None or then <= before]
        return [key for key in dict.fromkeys(keys) if self.graph.seen[key] == wanted]

    def _obstacle(self, c: Connection, norm: str, taps: dict[Moment, Tap]) -> str:
        """Why no ω can be hooked in."""
        if c.position not in ("post", "both"):
            return "no norm reads its sum alone"
        if not norm:
            return "its norm is a function call, not a module that hooks can be put on"
        if c.scaled or self.graph.values[c.x].shape != self.graph.values[c.b].shape:
            return "the model itself scales or reshapes its shortcut"
        if "sum" not in taps:
            return f"its norm {norm} serves other places too"
        return "" if "input" in taps else "no module takes or gives its shortcut"

    def _stuck(self, c: Connection, shared: list[str]) -> str:
        """Why an ω could not be folded away: some consumer of the stream cannot be rescaled."""
        if c.position == "both":
            return "its branch reads the stream through a norm of its own"
        if c.again:
            return f"it runs {len(c.executions)} times on the same weights"
        if shared:
            return f"its matrix {shared[0]} is used elsewhere too"
        if c.before is None:
            return ""
        stream = self.graph.source(c.x, PLAIN)
        reads = {use.number for use in c.uses if use.data in self._reads(c)}
        others = self.graph.users(stream, PLAIN) - reads - {c.b}
        if others:
            value = self.graph.values[min(others)]
            return f"the stream before it is also read by {value.op} in {value.path or 'the model itself'}"
        returned = {self.graph.source(number, PLAIN) for number in self.graph.outputs}
        return "the model returns the stream before it" if stream in returned else ""

    def _names(self) -> dict[int, str]:
        """The path of each addition; where several share one, that of the branch's matrices if deeper, else with its kind."""
        counts = Counter(c.path for c in self.places)
        names = [c.path if counts[c.path] == 1 and c.path else _inner_path(c) for c in self.places]
        return {id(c): name for c, name in zip(self.places, _numbered(names), strict=True)}

    def _stacks(self) -> dict[str, list[Connection]]:
        """The chains of connections by name: the module that has the list of their layers."""
        chains: dict[int, list[Connection]] = {}
        for c in self.places:
            root = c
            while root.before:
                root = root.before
            chains.setdefault(id(root), []).append(c)
        return dict(zip(_numbered(self._stack(chain) for chain in chains.values()), chains.values(), strict=True))

    def _stack(self, chain: list[Connection]) -> str:
        parts = _common([c.path.split(".") for c in chain])
        lists = nn.ModuleList | nn.Sequential | nn.ModuleDict
        while parts and (parts[-1].isdigit() or isinstance(self.model.get_submodule(".".join(parts)), lists)):
            parts = parts[:-1]
        return ".".join(parts) or "model"


def _inner_path(c: Connection) -> str:
    """The path of the branch's matrices if it lies deeper than the addition's, else that with the connection's kind."""
    inner = ".".join(_common([use.weight.split(".")[:-1] for use in c.uses]))
    return inner if len(inner) > len(c.path) else f"{c.path}.{c.kind}".lstrip(".")


def _layers(chain: list[Connection]) -> list[int]:
    """Layer of each connection, from 1: by the part of the path that counts them, else anew at each of the first's kind."""
    paths = [c.path.split(".") for c in chain]
    depth = len(_common(paths)) + 1
    keys = [".".join(path[:depth]) for path in paths]
    if 1 < len(set(keys)) < len(chain):
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys), 1)}
        return [numbers[key] for key in keys]
    return list(accumulate(int(c.kind == chain[0].kind) for c in chain))


def _common(paths: list[list[str]]) -> list[str]:
    """The parts that all paths begin with."""
    return [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))]


def _numbered(names: Iterable[str]) -> list[str]:
    """The names with .2, .3 … behind repeated ones."""
    counts: Counter[str] = Counter()
    result = []
    for name in names:
        counts[name] += 1
        result.append(name if counts[name] == 1 else f"{name}.{counts[name]}")
    return result
