"""What torch's basic operations do to a stream: which keep its numbers, which keep it a stream, and how it scales.

The names are those under which torch dispatches, so that one name stands for every way of writing an operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bathy.sites.graph import Value

NORMS = {
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "_fused_rms_norm",
    "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_no_update", "cudnn_batch_norm",
    "miopen_batch_norm", "batch_norm_with_update", "rms_norm", "layer_norm",
}  # fmt: skip
"""Operations that are norms."""
RESHAPES = {
    "view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze", "unsqueeze", "clone", "contiguous", "alias", "detach",
    "_to_copy", "to", "lift_fresh", "flatten", "unflatten", "identity", "view_dtype",
}  # fmt: skip
"""The same numbers in the same order."""
VIEWS = RESHAPES | {"transpose", "permute", "t", "movedim", "swapaxes", "expand", "numpy_T", "mT", "view_copy", "set_data"}
"""The same numbers in another order, shape or dtype."""
PIECES = {
    "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "narrow", "index", "index_select", "gather", "roll",
    "flip", "constant_pad_nd", "pad", "repeat", "repeat_interleave", "unfold", "as_strided", "masked_select", "take_along_dim",
    "im2col", "col2im", "pixel_shuffle", "pixel_unshuffle", "reflection_pad1d", "reflection_pad2d", "replication_pad1d",
    "diagonal", "slice_copy", "select_copy", "rot90", "tril", "triu", "channel_shuffle", "native_channel_shuffle", "_index",
}  # fmt: skip
"""Some of the numbers, or the numbers with others beside them: tokens picked, moved, padded or repeated."""
LOOKUPS = {"index", "index_select", "gather", "embedding"}
"""Rows picked by numbers."""
JOINS = {
    "cat",
    "stack",
    "overwritten",
    "index_put",
    "slice_scatter",
    "select_scatter",
    "scatter",
    "masked_scatter",
    "index_copy",
}
"""Pieces put together."""
POOLS = {
    "avg_pool1d", "avg_pool2d", "_adaptive_avg_pool2d", "mean", "max_pool2d_with_indices", "amax", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "adaptive_avg_pool1d", "avg_pool3d", "amin", "max",
    "max_pool3d_with_indices", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "_upsample_nearest_exact1d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "upsample_linear1d", "adaptive_avg_pool2d", "max_pool2d",
}  # fmt: skip
"""Tokens or pixels averaged, thinned out or repeated."""
BOUNDS = {"clamp", "clamp_min", "clamp_max", "hardtanh", "nan_to_num", "relu", "leaky_relu", "where", "masked_fill", "neg"}
"""Numbers kept within bounds or blanked out."""
POINTWISE = {"gelu", "silu", "tanh", "elu", "hardswish", "mish", "softplus", "prelu", "_prelu_kernel", "relu6", "sigmoid"}
"""Activation functions."""
SUMS = {"add", "sub", "rsub"}
FACTORS = {"mul", "div"}
REDUCTIONS = {"mean", "sum", "amax", "amin", "cumsum", "abs", "max", "min", "sort"}
POWERS = {
    "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "square": 2.0, "var": 2.0, "std": 1.0, "linalg_vector_norm": 1.0,
    "sgn": 0.0, "sign": 0.0,
}  # fmt: skip
"""How the result grows with the argument: |x|² grows with power 2."""
SHAPE_ONLY = {
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_empty",
    "new_full", "randint_like", "new_empty_strided",
}  # fmt: skip
"""Operations that take nothing but the shape of their argument."""
SMALL = 0.01
"""A number added to a statistic that is smaller than this is a norm's eps."""

KEEPS = (
    VIEWS
    | PIECES
    | JOINS
    | POOLS
    | BOUNDS
    | POINTWISE
    | SUMS
    | FACTORS
    | {"norm", "copy", "maximum", "minimum", "native_dropout", "lerp"}
)
"""Everything through which a stream stays a stream."""


def carriers(values: Sequence[Value], number: int) -> list[int]:
    """The inputs from which a stream may have come through this operation; none where it begins or a matrix was applied."""
    value = values[number]
    if value.op not in KEEPS or not value.inputs:
        return []
    if value.op == "copy":
        return [value.inputs[-1]]
    if value.op in LOOKUPS and values[value.inputs[0]].op == "parameter":
        return []  # rows of a table, as an embedding gives them
    if value.op in JOINS:
        return [i for i in value.inputs if values[i].floating]
    if value.op in SUMS | FACTORS | {"where", "maximum", "minimum", "lerp"}:
        return [i for i in value.inputs if values[i].floating and values[i].shape == value.shape]
    return [value.inputs[0]]


def degree(values: Sequence[Value], end: int, start: int) -> float | None:
    """The power with which `end` grows when `start` is multiplied by a number: 1 for a linear map, 0 after a norm.

    None where there is no such power, or `end` does not depend on `start`. A norm's eps counts as nothing.
    """
    known: dict[int, float | None] = {start: 1.0}
    dependent = _dependent(values, end, start)
    for number in sorted(dependent):
        if number != start:
            known[number] = _power(values, values[number], known)
    return known.get(end)


def _dependent(values: Sequence[Value], end: int, start: int) -> set[int]:
    """Values on the ways from `start` to `end`."""
    above: set[int] = set()
    waiting = [end]
    while waiting:
        number = waiting.pop()
        if number >= start and number not in above:
            above.add(number)
            waiting += values[number].inputs
    reached = {start}
    for number in sorted(above):
        if any(source in reached for source in values[number].inputs):
            reached.add(number)
    return reached if end in reached else set()


def _power(values: Sequence[Value], value: Value, known: dict[int, float | None]) -> float | None:
    """The power of one value, from those of its inputs; inputs not in `known` do not depend on the start."""
    powers = [known[i] for i in value.inputs if i in known]
    if None in powers:
        return None
    given = [power for power in powers if power is not None]
    if value.op == "norm" or not any(given):
        return 0.0  # whatever is computed from what does not grow, does not grow
    if value.op in FACTORS | {"mm", "bmm"}:
        signs = [-1 if value.op == "div" and position else 1 for position in range(len(value.inputs))]
        return sum(sign * (known.get(i) or 0.0) for i, sign in zip(value.inputs, signs, strict=True))
    if value.op == "pow":
        exponent = value.arguments[1] if len(value.arguments) > 1 else None
        return given[0] * exponent if isinstance(exponent, int | float) else None
    if value.op == "var_mean":
        return given[0] * (2 if value.part[0] == 0 else 1)
    if value.op in POWERS:
        return POWERS[value.op] * given[0]
    return _shared_power(values, value, known, given)


def _shared_power(values: Sequence[Value], value: Value, known: dict[int, float | None], given: list[float]) -> float | None:
    """The power of a sum, a choice or a view: that of its parts, if they agree."""
    if value.op not in VIEWS | PIECES | JOINS | POOLS | BOUNDS | SUMS | REDUCTIONS | {"copy", "maximum", "minimum"}:
        return None
    if len(set(given)) > 1:
        return None
    independent = [i for i in value.inputs if i not in known]
    if value.op in SUMS | {"maximum", "minimum"}:
        numbers = [abs(part) for part in value.arguments[1:2] if isinstance(part, int | float)]
        if any(number > SMALL for number in numbers) or any(values[i].shape.numel() > 1 for i in independent):
            return None
    return given[0]
