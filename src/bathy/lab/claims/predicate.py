"""Predicates: one comparison between measured numbers, written as it is shown, e.g. `admin_18.bleu >= pre_ln_18.bleu`.

A name is a word with dots; arithmetic, abs, min, max and log are there; nothing else is. Numbers are scalars, or one value
for each seed; a scalar serves every seed.
"""

from __future__ import annotations

import ast
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bathy.errors import ConfigError

Numbers = Mapping[str, float | Mapping[str, float]]
"""Name to its value, or to one value per seed. A quantity of a run that blew up is infinite."""

Holds = Literal["yes", "no", "spread", "missing"]

ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b if b else math.copysign(math.inf, a) if a else math.nan,
}
FUNCTIONS: dict[str, Callable[..., float]] = {"abs": abs, "min": min, "max": max, "log": math.log}
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t for a two-sided 95 % interval, by degrees of freedom from 1 on; beyond, 1.96."""
RISING: dict[type[ast.cmpop], bool] = {ast.Gt: True, ast.GtE: True, ast.Lt: False, ast.LtE: False}


@dataclass(frozen=True)
class Checked:
    """A predicate held against numbers."""

    predicate: str
    holds: Holds
    values: dict[str, float | dict[str, float]]
    """The numbers that it names, as they were."""
    margins: list[float]
    """For each seed, by how much it holds; negative where it does not."""
    missing: list[str]

    @property
    def why(self) -> str:
        """The predicate and the figures of its names, in their order."""
        if self.missing:
            return f"{self.predicate} (not measured: {', '.join(self.missing)})"
        shown = ", ".join(map(_figure, self.values.values()))
        if len(self.margins) > 1 and all(map(math.isfinite, self.margins)):
            shown += f"; margin {self.margin}"
        return f"{self.predicate} ({shown})"

    @property
    def margin(self) -> str:
        """By how much it holds in the mean over seeds, with its 95 % interval where there are several."""
        if not self.margins:
            return "not measured"
        if not all(map(math.isfinite, self.margins)):
            return "/".join(f"{margin:.3g}" for margin in self.margins)
        interval = f" ± {half_width(self.margins):.2g}" if len(self.margins) > 1 else ""
        return f"{statistics.fmean(self.margins):.3g}{interval}"


def check(predicate: str, numbers: Numbers) -> Checked:
    """Whether the predicate holds in the mean over seeds; `spread` if the 95 % interval of its margin covers 0."""
    compare = parse(predicate)
    known = names(predicate)
    missing = [name for name in known if name not in numbers or numbers[name] == {}]
    values = {name: _plain(numbers[name]) for name in known if name not in missing}
    seeds = _common(values)
    if missing or not seeds:
        return Checked(predicate, "missing", values, [], missing or ["one seed that all of its numbers have"])
    margins = [_margin(compare, {name: _of(value, seed) for name, value in values.items()}) for seed in seeds]
    strict = isinstance(compare.ops[0], ast.Gt | ast.Lt)
    return Checked(predicate, _decide(margins, strict), values, margins, [])


def parse(predicate: str) -> ast.Compare:
    """The comparison, or an error that says what in it is not allowed."""
    try:
        tree = ast.parse(predicate, mode="eval").body
    except SyntaxError as error:
        raise ConfigError(f"the predicate {predicate!r} cannot be read: {error.msg}") from None
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1 or type(tree.ops[0]) not in RISING:
        raise ConfigError(f"the predicate {predicate!r} must be one comparison with <, <=, > or >=")
    for side in (tree.left, tree.comparators[0]):
        _value(side, lambda name: 1.0)
    return tree


def names(predicate: str) -> list[str]:
    """The numbers that a predicate needs, in its order."""
    found: dict[str, None] = {}

    def note(name: str) -> float:
        found[name] = None
        return 1.0

    compare = parse(predicate)
    for side in (compare.left, compare.comparators[0]):
        _value(side, note)
    return list(found)


def _value(node: ast.expr, look_up: Callable[[str], float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name() | ast.Attribute():
            return look_up(ast.unparse(node))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, look_up)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return ARITHMETIC[type(op)](_value(left, look_up), _value(right, look_up))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(arg, look_up) for arg in args))
    raise ConfigError(f"a predicate cannot contain {ast.unparse(node)!r}")


def _margin(compare: ast.Compare, values: Mapping[str, float]) -> float:
    left, right = (_value(side, values.__getitem__) for side in (compare.left, compare.comparators[0]))
    return left - right if RISING[type(compare.ops[0])] else right - left


def _decide(margins: Sequence[float], strict: bool) -> Holds:
    if any(math.isnan(margin) for margin in margins):
        return "missing"
    if not all(map(math.isfinite, margins)):
        signs = {margin > 0 for margin in margins}
        return "spread" if len(signs) > 1 else "yes" if signs == {True} else "no"
    mean = statistics.fmean(margins)
    if half_width(margins) > abs(mean):
        return "spread"
    return "yes" if mean > 0 or (mean == 0 and not strict) else "no"


def half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of the values' mean, by Student's t; 0 for one value, which has no interval."""
    if len(values) < 2:
        return 0.0
    t = T_95[len(values) - 2] if len(values) - 2 < len(T_95) else 1.96
    return t * statistics.stdev(values) / math.sqrt(len(values))


def _common(values: Mapping[str, float | dict[str, float]]) -> list[str]:
    """The seeds that every number has; one nameless seed where all are scalars."""
    each = [set(value) for value in values.values() if isinstance(value, dict)]
    return sorted(set.intersection(*each)) if each else [""]


def _of(value: float | dict[str, float], seed: str) -> float:
    return value[seed] if isinstance(value, dict) else value


def _plain(value: Any) -> float | dict[str, float]:
    return {str(seed): float(v) for seed, v in value.items()} if isinstance(value, Mapping) else float(value)


def _figure(value: float | dict[str, float]) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    values = list(value.values())
    if len(set(values)) == 1:
        return f"{values[0]:.4g}"
    if not all(map(math.isfinite, values)):
        return "/".join(f"{v:.4g}" for v in values)
    return f"{statistics.fmean(values):.4g} ± {statistics.stdev(values):.2g}"
