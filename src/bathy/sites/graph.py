"""One forward pass as a graph: which tensor was computed from which, by which of torch's basic operations, in which module.

The pass is recorded where torch dispatches, below every way of writing it: `x + a`, `+=`, einsum, a scripted module and an
autograd function all come down to the same few operations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from bathy.errors import ModelError
from bathy.sites.batch import Batch, call, tensors_in, undisturbed
from bathy.sites.meaning import NORMS, PIECES, RESHAPES, SHAPE_ONLY, SUMS, VIEWS, degree

Side = Literal["input", "output"]
Spot = tuple[str, str, int]
"""A value by the module that computes it, the operation, and how many of that kind came before in the pass."""
MOST_INSIDE_NORM = 60
"""Operations inside a module that may be a norm."""


@dataclass(frozen=True)
class Ref:
    """Stands for a value among the arguments of an operation."""

    number: int


@dataclass(frozen=True)
class Value:
    """One tensor of the pass; its number is its place in the order of computation."""

    number: int
    op: str
    """Operation that gave it, without the underscore of in-place ones; 'norm', 'parameter', 'buffer', 'input', or 'module'."""
    inputs: tuple[int, ...]
    path: str
    """Module inside which it was computed; of a norm's result the norm itself, '' when the norm is no module."""
    shape: torch.Size
    floating: bool
    name: str = ""
    """Of a parameter, its name."""
    part: tuple[int, int] = (0, 1)
    """Which of how many results of the operation it is."""
    arguments: tuple[Any, ...] = ()
    """What the operation was called with; a `Ref` for each tensor."""
    function: Callable[..., Any] | None = None
    alpha: float = 1.0
    """Number by which a sum multiplies its second operand."""
    spot: Spot = ("", "", 0)
    beta: float = 1.0
    """Number by which a fused sum, as addmm is, multiplies its first operand."""
    overwrites: frozenset[int] = frozenset()
    """Values whose numbers this in-place operation changed."""


@dataclass(frozen=True)
class Key:
    """A place where a module takes or gives a tensor: the `where`-th argument, or part of its output."""

    path: str
    side: Side
    where: tuple[str | int, ...]


@dataclass
class Graph:
    """The pass: values in order, who consumes them, and where modules take and give them."""

    values: list[Value] = field(default_factory=list)
    seen: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Numbers of the values that passed each place, in order."""
    outputs: list[int] = field(default_factory=list)
    """What the model returned."""

    def __post_init__(self) -> None:
        self.consumers: dict[int, list[int]] = defaultdict(list)
        self.hidden: set[int] = set()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.uses: dict[int, list[Any]] = {}  # what `matrices` has found of each value
        self.places: dict[int, list[tuple[Key, int]]] = defaultdict(list)  # where a value passed, and what number came next

    def add(self, op: str, inputs: tuple[int, ...], path: str, tensor: Tensor, **more: Any) -> int:
        """Append a value; returns its number."""
        if tensor.is_nested:
            raise ModelError(
                "nested tensors cannot be traced; give a padded batch, or lay the tokens of all sentences end to end"
            )
        number = len(self.values)
        floating = tensor.is_floating_point() or tensor.is_complex()
        spot = (path, op, self.counts[path, op])
        self.counts[path, op] += 1
        self.values.append(Value(number, op, inputs, path, tensor.shape, floating, spot=spot, **more))
        for source in dict.fromkeys(inputs):
            self.consumers[source].append(number)
        return number

    def sight(self, key: Key, number: int) -> None:
        """Note that a value passed a place."""
        self.seen[key].append(number)
        self.places[number].append((key, len(self.values)))

    def hide(self, start: int) -> None:
        """Let nobody see the values from `start` on as consumers of earlier ones: they are the inside of a norm."""
        self.hidden.update(range(start, len(self.values)))
        for source in {source for value in self.values[start:] for source in value.inputs if source < start}:
            self.consumers[source] = [number for number in self.consumers[source] if number < start]

    def source(self, number: int, through: Collection[str]) -> int:
        """The value that `number` is, seen through operations that keep its numbers."""
        while self.values[number].op in through and self.values[number].inputs:
            number = self.values[number].inputs[0]
        return number

    def users(self, number: int, through: Collection[str]) -> set[int]:
        """What consumes a value, seen through operations that keep its numbers."""
        found: set[int] = set()
        waiting = [number]
        while waiting:
            for user in self.consumers[waiting.pop()]:
                if self.values[user].op in through or self.values[user].op == "overwritten":
                    waiting.append(user)
                else:
                    found.add(user)
        return found

    def between(self, start: int, end: int) -> set[int] | None:
        """Every value computed after `start` that `end` was computed from; None when `start` is not among its sources."""
        found: set[int] = set()
        reached, waiting = False, [end]
        while waiting:
            number = waiting.pop()
            reached |= number == start
            if number > start and number not in found:
                found.add(number)
                waiting += self.values[number].inputs
        return found if reached else None

    def parameter(self, number: int) -> str:
        """Name of the parameter that the value is, seen through views and casts; '' when it is none."""
        value = self.values[self.source(number, VIEWS)]
        return value.name if value.op == "parameter" else ""

    def data(self) -> set[int]:
        """The values that depend on what the model was given; the others are made from parameters and constants alone."""
        found: set[int] = set()
        for value in self.values:
            if value.op == "input" or any(source in found for source in value.inputs):
                found.add(value.number)
        return found

    def parameter_part(self, number: int) -> str:
        """Name of the parameter of which the value is all or some rows; '' when it is none."""
        value = self.values[self.source(number, VIEWS | PIECES)]
        return value.name if value.op == "parameter" else ""

    def depends(self, number: int, start: int) -> bool:
        """Whether a value is, or was computed from, the value `start`."""
        return self.between(start, number) is not None

    def memory(self, number: int) -> int:
        """The value in whose memory this one lies."""
        return self.source(number, VIEWS - {"clone", "_to_copy", "contiguous"} | PIECES - {"index", "gather", "index_select"})

    def factor(self, start: int, end: int) -> float | None:
        """The number by which `start` is multiplied on its way to `end`; None where more happens than that and reshaping."""
        from bathy.sites.replay import in_order

        result, number, way = 1.0, end, [end]
        while number != start:
            value = self.values[number]
            numbers = [part for part in value.arguments[:2] if isinstance(part, int | float)]
            if value.op in ("mul", "div") and numbers and len(value.inputs) == 1:
                result = result * numbers[0] if value.op == "mul" else result / numbers[0]
            elif value.op not in VIEWS and not (value.op in SUMS and numbers == [0] and len(value.inputs) == 1):
                return None
            if number < start or not value.inputs:
                return None
            way.append(number := value.inputs[0])
        return result if in_order(self, way[::-1]) else None

    def same_order(self, a: int, b: int) -> bool:
        """Whether two values are the same numbers in the same order, in whatever shape."""
        return self.source(a, RESHAPES) == self.source(b, RESHAPES)


def record(model: nn.Module, batch: Batch) -> Graph:
    """The graph of one forward pass in evaluation mode, where no layer is dropped; the model stays as it was."""
    recorder = Recorder()
    with undisturbed(model), recorder.hooked(model), torch.no_grad(), recorder:
        model.eval()
        output = call(model, batch)
    recorder.graph.outputs = [recorder.number(tensor) for _, tensor in tensors_in(output)]
    return recorder.graph


class Recorder(TorchDispatchMode):
    """Writes every operation and every module call of a pass into a graph."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.numbers = WeakTensorKeyDictionary()
        self.sharing: dict[int, list[ref[Tensor]]] = defaultdict(list)  # live tensors by storage
        self.calls: list[tuple[str, int, int]] = []  # open module calls: path, first tensor argument, next number
        self.blind = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block whose operations are not recorded."""
        was, self.blind = self.blind, True
        try:
            yield
        finally:
            self.blind = was

    def hooked(self, model: nn.Module) -> ExitStack:
        """A block in which module calls are noted. Modules that can take no hooks, scripted ones, are seen through."""
        for name, parameter in model.named_parameters():
            self._give(parameter, self.graph.add("parameter", (), "", parameter, name=name))
        for name, buffer in model.named_buffers():
            self._give(buffer, self.graph.add("buffer", (), "", buffer, name=name))
        with ExitStack() as handles:
            for path, module in model.named_modules():
                if isinstance(module, torch.jit.ScriptModule):
                    continue
                few = all(p.dim() < 2 or p.numel() == max(p.shape) for p in module.parameters())
                handles.callback(module.register_forward_pre_hook(self._enter(path), with_kwargs=True).remove)
                handles.callback(module.register_forward_hook(self._leave(path, few), with_kwargs=True).remove)
            return handles.pop_all()
        raise AssertionError

    @property
    def path(self) -> str:
        """The module being run."""
        return self.calls[-1][0] if self.calls else ""

    def number(self, tensor: Tensor) -> int:
        """The tensor's number; a tensor never seen before is an input."""
        if tensor not in self.numbers:
            self._give(tensor, self.graph.add("input", (), self.path, tensor))
        return int(self.numbers[tensor])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.blind:
            return func(*args, **kwargs)
        written = [(i, argument) for i, argument in enumerate(func._schema.arguments) if argument.is_write]
        given = {name: value for name, value in kwargs.items() if name not in {argument.name for _, argument in written}}
        sources = tuple(self.number(leaf) for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor))
        result = func(*args, **kwargs)
        if func._overloadpacket.__name__ in SHAPE_ONLY:
            sources = ()  # only the shape of its argument enters
        targets = [args[i] if i < len(args) else kwargs.get(argument.name) for i, argument in written]  # add_, or add(out=…)
        if targets and targets[0] is not None:
            self._overwrite(func, args, kwargs, sources, targets[0])
        else:
            self._note(func, args, kwargs, sources, [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)])
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, sources: tuple[int, ...], results: list[Tensor]) -> None:
        """Write down the results of an operation."""
        for i, tensor in enumerate(results):
            if self.numbers.get(tensor) not in sources or not sources:  # else the operation gave back its own argument
                self._give(tensor, self._add(func, args, kwargs, sources, tensor, part=(i, len(results))))

    def _overwrite(self, func: Any, args: Any, kwargs: Any, sources: tuple[int, ...], target: Any) -> None:
        """Write down an in-place operation: its target, and whatever shares memory with it, are new values."""
        for tensor in target if isinstance(target, list | tuple) else [target]:
            others = [other for other in self._sharing(tensor) if other is not tensor]
            old = frozenset(int(self.numbers[t]) for t in [tensor, *others] if t in self.numbers)
            new = self._add(func, args, kwargs, sources, tensor, overwrites=old)
            self._give(tensor, new)
            for other in others:
                inputs = (int(self.numbers[other]), new)
                self._give(other, self.graph.add("overwritten", inputs, self.path, other))

    def _add(self, func: Any, args: Any, kwargs: Any, sources: tuple[int, ...], tensor: Tensor, **more: Any) -> int:
        name = func._overloadpacket.__name__
        if name in NORMS and more.get("part", (0, 1))[0]:
            return self.graph.add("statistic", (), self.path, tensor)  # of a norm, for its backward pass
        op = "norm" if name in NORMS else name.removesuffix("_") if more.get("overwrites") else name
        numbered = tree_map_only(Tensor, lambda leaf: Ref(int(self.numbers[leaf])), tuple(args))
        more["alpha"] = float(kwargs.get("alpha", 1)) * (-1 if op == "sub" else 1)
        more["beta"] = float(kwargs.get("beta", 1))
        path = "" if op == "norm" else self.path
        return self.graph.add(op, sources, path, tensor, arguments=numbered, function=func, **more)

    def _give(self, tensor: Tensor, number: int) -> None:
        """Give a tensor its number."""
        if tensor not in self.numbers and (place := _storage(tensor)):
            self.sharing[place].append(ref(tensor))
        self.numbers[tensor] = number

    def _sharing(self, tensor: Tensor) -> list[Tensor]:
        """Live tensors, known by number, that share memory with this one."""
        place = _storage(tensor)
        if not place:
            return []
        live = [other for weak in self.sharing[place] if (other := weak()) is not None]
        self.sharing[place] = [ref(other) for other in live]
        return [other for other in live if _storage(other) == place]

    def _enter(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            first = -1
            for where, tensor in tensors_in({"args": args, "kwargs": kwargs}):
                number = self.number(tensor)
                first = number if first < 0 else first
                self.graph.sight(Key(path, "input", where), number)
            self.calls.append((path, first, len(self.graph.values)))

        return hook

    def _leave(self, path: str, few: bool) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            _, first, start = self.calls.pop()
            given = list(tensors_in(output))
            if isinstance(module, nn.RNNBase | nn.RNNCellBase) and first >= 0:  # one operation, however torch takes it apart
                self.graph.hide(start)
                weights = tuple(self.number(parameter) for parameter in module.parameters())
                for _, tensor in given:
                    self._give(tensor, self.graph.add("rnn", (first, *weights), path, tensor))
            if few and len(given) == 1 and first >= 0 and self._is_norm(given[0][1], first, start):
                self.graph.hide(start)
                self._give(given[0][1], self.graph.add("norm", (first,), path, given[0][1]))
            for where, tensor in given:
                if tensor not in self.numbers:
                    sources = tuple(self.number(t) for _, t in tensors_in((args, kwargs)))
                    self._give(tensor, self.graph.add("module", sources, path, tensor))
                self.graph.sight(Key(path, "output", where), self.number(tensor))

        return hook

    def _is_norm(self, output: Tensor, first: int, start: int) -> bool:
        """Whether what the module gives does not grow with what it takes."""
        number = self.numbers.get(output)
        inside = len(self.graph.values) - start
        if number is None or not 0 < inside <= MOST_INSIDE_NORM or output.shape != self.graph.values[first].shape:
            return False
        return int(number) >= start and degree(self.graph.values, int(number), first) == 0


def _storage(tensor: Tensor) -> int:
    """What tells the tensor's memory from others; 0 where it has none of its own, as under `vmap`."""
    try:
        return int(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else 0
    except (NotImplementedError, RuntimeError):
        return 0


def is_norm(module: nn.Module) -> bool:
    """Whether a module that has not run is a norm, as far as can be told: its class says so, and it has no matrix."""
    return "norm" in type(module).__name__.lower() and all(p.dim() < 2 for p in module.parameters())
