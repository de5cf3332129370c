"""One forward pass as a graph: which tensor was computed from which, by what, inside which module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from bathy.sites.batch import Batch, call, undisturbed

NORMS = {"layer_norm", "rms_norm"}
"""Functions that are norms; a module is one when its class says 'norm' and it has no matrix."""
DROPOUTS = {"dropout", "alpha_dropout", "feature_dropout"}
VIEWS = {
    "view", "reshape", "transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "movedim", "swapaxes",
    "contiguous", "clone", "to", "float", "half", "bfloat16", "double", "type", "type_as", "view_as", "reshape_as",
}  # fmt: skip
"""Functions that give the same numbers in another shape, order or dtype."""

Side = Literal["input", "output"]


@dataclass(frozen=True)
class Value:
    """One tensor of the pass; its number is its place in the order of computation."""

    number: int
    op: str
    """Function that gave it; 'norm' for a norm, 'parameter', 'input', or 'module' where nothing else was seen."""
    inputs: tuple[int, ...]
    path: str
    """Module inside which it was computed; of a norm's result the norm itself, '' when the norm is a function."""
    shape: torch.Size
    floating: bool
    name: str = ""
    """Of a parameter, its name; 'alpha' for a sum whose second operand is multiplied by a number."""
    part: tuple[int, int] = (0, 1)
    """Which of how many results of the function it is."""
    arguments: Mapping[str, int] = field(default_factory=dict)
    """Inputs by argument, where the function's own signature is needed to tell them apart."""
    in_place: bool = False


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
        self.places: dict[int, list[tuple[Key, int]]] = defaultdict(list)  # where a value passed, and what number came next

    def add(self, op: str, inputs: tuple[int, ...], path: str, tensor: Tensor, **more: Any) -> int:
        """Append a value; returns its number."""
        number = len(self.values)
        self.values.append(Value(number, op, inputs, path, tensor.shape, tensor.is_floating_point(), **more))
        for source in dict.fromkeys(inputs):
            self.consumers[source].append(number)
        return number

    def sight(self, key: Key, number: int) -> None:
        """Note that a value passed a place."""
        self.seen[key].append(number)
        self.places[number].append((key, len(self.values)))

    def source(self, number: int, through: set[str]) -> int:
        """The value that `number` is, seen through functions that only reshape, cast or drop."""
        while self.values[number].op in through:
            number = self.values[number].inputs[0]
        return number

    def users(self, number: int, through: set[str]) -> set[int]:
        """What consumes a value, seen through functions that only reshape, cast or drop."""
        found: set[int] = set()
        waiting = [number]
        while waiting:
            for user in self.consumers[waiting.pop()]:
                if self.values[user].op in through:
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
        """Name of the parameter that the value is, seen through views; '' when it is none."""
        value = self.values[self.source(number, VIEWS | {"T", "t", "__get__"})]
        return value.name if value.op == "parameter" else ""


def record(model: nn.Module, batch: Batch) -> Graph:
    """The graph of one forward pass in training mode; the model stays as it was."""
    recorder = _Recorder(model)
    try:
        with undisturbed(model), torch.no_grad(), recorder:
            model.train()
            output = call(model, batch)
    finally:
        recorder.close()
    recorder.graph.outputs = [recorder.number(tensor) for _, tensor in _tensors(output)]
    return recorder.graph


class _Recorder(TorchFunctionMode):
    """Writes every torch function and every module call of a pass into a graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = Graph()
        self.numbers = WeakTensorKeyDictionary()
        self.calls: list[tuple[str, int]] = []  # open module calls: path, number of the first tensor argument
        self.in_norm = 0  # open calls of norms; what happens inside a norm is the norm
        for name, parameter in model.named_parameters():
            self.numbers[parameter] = self.graph.add("parameter", (), "", parameter, name=name)
        self.handles: list[RemovableHandle] = []
        for path, module in model.named_modules():
            norm = is_norm(module)
            self.handles.append(module.register_forward_pre_hook(self._enter(path, norm), with_kwargs=True))
            self.handles.append(module.register_forward_hook(self._leave(path, norm), with_kwargs=True))

    def close(self) -> None:
        """Take all hooks off."""
        for handle in self.handles:
            handle.remove()

    @property
    def path(self) -> str:
        """The module being run."""
        return self.calls[-1][0] if self.calls else ""

    def number(self, tensor: Tensor) -> int:
        """The tensor's number; a tensor never seen before is an input."""
        if tensor not in self.numbers:
            self.numbers[tensor] = self.graph.add("input", (), self.path, tensor)
        return int(self.numbers[tensor])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        op = getattr(func, "__name__", "")
        in_place = op == "__setitem__" or (op.endswith("_") and not op.endswith("__"))
        results = [args[0]] if in_place else [tensor for _, tensor in _tensors(result)]
        if results and not self.in_norm:
            self._note(op, func, args, kwargs, results, in_place)
        return result

    def _note(self, op: str, func: Any, args: Any, kwargs: Any, results: list[Tensor], in_place: bool) -> None:
        """Write down one function's results."""
        sources = tuple(self.number(tensor) for _, tensor in _tensors((args, kwargs), depth=3))
        op, path = ("norm", "") if op in NORMS else (op.removesuffix("_") if in_place else op, self.path)
        for i, tensor in enumerate(results):
            if in_place or self.numbers.get(tensor) not in sources:  # else the function gave back its own argument
                more: dict[str, Any] = {"part": (i, len(results)), "in_place": in_place}
                more["arguments"] = self._arguments(op, func, args, kwargs)
                more["name"] = "alpha" if kwargs.get("alpha", 1) != 1 else ""
                self.numbers[tensor] = self.graph.add(op, sources, path, tensor, **more)

    def _arguments(self, op: str, func: Any, args: Any, kwargs: Any) -> dict[str, int]:
        """Inputs by name for attention in one function, whose matrices only its signature tells apart."""
        if op != "multi_head_attention_forward":
            return {}
        bound = signature(func).bind(*args, **kwargs).arguments
        return {name: self.number(value) for name, value in bound.items() if isinstance(value, Tensor)}

    def _enter(self, path: str, norm: bool) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            first = -1
            for where, tensor in _tensors({"args": args, "kwargs": kwargs}, depth=2):
                number = self.number(tensor)
                first = number if first < 0 else first
                self.graph.sight(Key(path, "input", where), number)
            self.calls.append((path, first))
            self.in_norm += norm

        return hook

    def _leave(self, path: str, norm: bool) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            _, first = self.calls.pop()
            self.in_norm -= norm
            for where, tensor in () if self.in_norm else _tensors(output):
                if norm and first >= 0 and tensor.shape == self.graph.values[first].shape:
                    self.numbers[tensor] = self.graph.add("norm", (first,), path, tensor)
                elif tensor not in self.numbers:
                    sources = tuple(self.number(t) for _, t in _tensors((args, kwargs), depth=2))
                    self.numbers[tensor] = self.graph.add("module", sources, path, tensor)
                self.graph.sight(Key(path, "output", where), self.number(tensor))

        return hook


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm: its class says so, and it has no matrix."""
    return "norm" in type(module).__name__.lower() and all(p.dim() < 2 for p in module.parameters())


def _tensors(value: Any, depth: int = 1) -> Iterator[tuple[tuple[str | int, ...], Tensor]]:
    """The tensors in a value, its tuples, lists and dicts, each with the way to it."""
    if isinstance(value, Tensor):
        yield (), value
    elif depth and isinstance(value, Mapping | tuple | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            for where, tensor in _tensors(item, depth - 1):
                yield (key, *where), tensor
