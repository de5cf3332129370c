"""Compiled kernels for narrow models: attention of short sequences and what a sub-layer does to each row.

In a narrow model a matrix product takes no longer than the operations between two of them, each of which is a call into torch
and a pass over memory. Here a head's scores, softmax, dropout and values are one pass, and so is a norm or ω · x + dropout(y).
The C files are in `c/`, `build` compiles them. Used in float32 on a CPU, where `library` says so; each function has
its counterpart in torch as the oracle of a test.
"""

# b batch, h head, t token, d head width, r row (b t)

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bathy.kernels import build

MOST = 128
"""Longest sequence and widest head that attention takes."""
SPARE = 16
"""Random draws that attention may read beyond its last."""
LARGEST = 1 << 17
"""Entries of a matrix up to which our products are the fastest."""
TOLERANCE = 1e-4
_integer, _real, _address = ctypes.c_long, ctypes.c_float, ctypes.c_void_p


class _Settings(ctypes.Structure):
    _fields_ = (
        ("items", _integer), ("heads", _integer), ("queries", _integer), ("keys", _integer), ("width", _integer),
        ("scale", _real), ("bias", _address), ("bias_item", _integer), ("bias_query", _integer), ("causal", _integer),
        ("draws", _address), ("level", ctypes.c_int32), ("kept", _real), ("threads", _integer), ("strides", _integer * 18),
    )  # fmt: skip


class Dropped(NamedTuple):
    """What is dropped: where 16 bits of `draws` are below `level`; the rest is multiplied by `kept`."""

    draws: Tensor
    level: int
    kept: float


SIGNATURES: dict[str, str] = {
    "attend": "pppppp",
    "attend_back": "pppppppppp",
    "join": "iippplfpfpi",
    "norm": "iipppfpppi",
    "norm_back": "iippppppppppi",
    "sum_rows": "iipppi",
    "mask": "ipplfpi",
    "relu_mask": "ipplfpi",
    "relu_mask_back": "ippfpi",
    "softmax_loss": "iippfppi",
    "product": "iiippppi",
    "product_back": "iiipppi",
    "weight_back": "iiipppi",
    "draw": "upi",
    "lanes": "",
}
"""Arguments of each function: i a whole number, u one of 64 bits without a sign, l a draw, f a number, p an address."""


@cache
def _library() -> ctypes.CDLL | str:
    found = build.load()
    if isinstance(found, str):
        return found
    kinds = {"i": _integer, "f": _real, "p": _address, "l": ctypes.c_int16, "u": ctypes.c_uint64}
    for name, arguments in SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes = [kinds[argument] for argument in arguments]
        function.restype = _integer if name == "lanes" else None
    return found


@cache
def available() -> bool:
    """Whether the kernels are compiled and agree with torch."""
    return not missing()


@cache
def missing() -> str:
    """Why there are no compiled kernels; nothing where there are."""
    found = _library()
    if isinstance(found, str):
        return found
    return "" if _agrees() else "their numbers differ from torch's"


def _c() -> Any:
    return _library()


@cache
def lanes() -> int:
    """Numbers of one vector."""
    return int(_c().lanes())


def _agrees() -> bool:
    """Whether attention and a norm, the two that are more than sums, come out as torch's."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 7, 2 * lanes(), generator=generator)
    o, _ = attend((q, k, v), None, True, None, 0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3).transpose(1, 2)
    x, gamma = torch.randn(5, 40, generator=generator), torch.randn(40, generator=generator)
    normed, plain = norm(x, gamma, None, 1e-5)[0], torch.nn.functional.layer_norm(x, (40,), gamma, None, 1e-5)
    return all(bool((a - b).abs().max() <= TOLERANCE) for a, b in ((o.view_as(expected), expected), (normed, plain)))


def can_attend(width: int, queries: int, keys: int) -> bool:
    """Whether attention of this size is small enough, and its heads whole vectors."""
    return max(width, queries, keys) <= MOST and width % lanes() == 0


def _settings(
    parts: Sequence[Tensor], bias: Tensor | None, causal: bool, dropped: Dropped | None, scale: float
) -> ctypes.Structure:
    """For q, k and v, and their gradients where there are any, each b h t d with a stride of 1 along d."""
    items, heads, queries, width = parts[0].shape
    of_bias = (None, 0, 0) if bias is None else (bias.data_ptr(), *_bias_strides(bias))
    strides = (_integer * 18)(*(step for part in parts for step in part.stride()[:3]))
    return _Settings(
        items, heads, queries, parts[1].shape[2], width, scale, *of_bias, causal, *_given(dropped), _threads(),
        strides,
    )  # fmt: skip


def _given(dropped: Dropped | None) -> tuple[int | None, int, float]:
    """Where the draws are, and what they decide; nothing is dropped without them."""
    return (dropped.draws.data_ptr(), dropped.level, dropped.kept) if dropped else (None, 0, 1.0)


def _bias_strides(bias: Tensor) -> tuple[int, int]:
    """How far apart the biases of items and of queries are, 0 where they share them: of q k, b 1 q k or b 1 1 k."""
    whole = bias if bias.dim() == 4 else bias[None, None]
    return whole.stride(0) if whole.shape[0] > 1 else 0, whole.stride(2) if whole.shape[2] > 1 else 0


def attend(
    qkv: Sequence[Tensor], bias: Tensor | None, causal: bool, dropped: Dropped | None, scale: float
) -> tuple[Tensor, Tensor]:
    """(o, p): dropout(softmax(scale · q·kᵀ + bias)) v as rows, and the probabilities, padded, for the way back."""
    items, heads, queries, width = qkv[0].shape
    p = qkv[0].new_empty(items, heads, queries, -(-qkv[1].shape[2] // lanes()) * lanes())
    o = qkv[0].new_empty(items * queries, heads * width)
    at = _settings(qkv, bias, causal, dropped, scale)
    _c().attend(ctypes.byref(at), *(part.data_ptr() for part in qkv), p.data_ptr(), o.data_ptr())
    return o, p


def attend_back(
    grad_rd: Tensor,
    o_rd: Tensor,
    qkv: Sequence[Tensor],
    p: Tensor,
    dropped: Dropped | None,
    scale: float,
    into: Sequence[Tensor],
) -> None:
    """Write the gradients of q, k and v, each b h t d, from that of o."""
    at = _settings([*qkv, *into], None, False, dropped, scale)
    rest = (tensor.data_ptr() for tensor in (o_rd, *qkv, p, *into))
    _c().attend_back(ctypes.byref(at), grad_rd.data_ptr(), *rest)


def join(x_rd: Tensor, y_rd: Tensor, dropped: Dropped | None, omega: Tensor | float, into: Tensor | None = None) -> Tensor:
    """ω · x + dropout(y), ω a number or a vector; written `into` a tensor, which may be y."""
    z = torch.empty_like(y_rd) if into is None else into
    vector, number = (omega.data_ptr(), 0.0) if isinstance(omega, Tensor) else (None, omega)
    _c().join(*x_rd.shape, x_rd.data_ptr(), y_rd.data_ptr(), *_given(dropped), vector, number, z.data_ptr(), _threads())
    return z


def norm(x_rd: Tensor, gamma: Tensor, nu: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """γ · (x − μ)/σ + ν, and μ and 1/σ of each row."""
    out, mean, deviation = torch.empty_like(x_rd), x_rd.new_empty(x_rd.shape[0], 1), x_rd.new_empty(x_rd.shape[0], 1)
    given = x_rd.data_ptr(), gamma.data_ptr(), None if nu is None else nu.data_ptr()
    _c().norm(*x_rd.shape, *given, eps, out.data_ptr(), mean.data_ptr(), deviation.data_ptr(), _threads())
    return out, mean, deviation


def norm_back(
    grad_rd: Tensor,
    x_rd: Tensor,
    mean: Tensor,
    deviation: Tensor,
    gamma: Tensor,
    nu: Tensor | None,
    stream: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, γ and ν; and Σ dx ⊙ stream, that of ω where x is ω · stream + …."""
    dx, d_gamma, d_nu = torch.empty_like(x_rd), torch.empty_like(gamma), None if nu is None else torch.empty_like(nu)
    d_omega = None if stream is None else torch.empty_like(gamma)
    parts = (grad_rd, x_rd, mean, deviation, gamma, stream, dx, d_gamma, d_nu, d_omega)
    _c().norm_back(*x_rd.shape, *(None if part is None else part.data_ptr() for part in parts), _threads())
    return dx, d_gamma, d_nu, d_omega


def sum_rows(a_rd: Tensor, b_rd: Tensor | None = None) -> Tensor:
    """Σ a over the rows, or Σ a ⊙ b."""
    out = a_rd.new_empty(a_rd.shape[1])
    _c().sum_rows(*a_rd.shape, a_rd.data_ptr(), None if b_rd is None else b_rd.data_ptr(), out.data_ptr(), _threads())
    return out


def mask(x: Tensor, dropped: Dropped) -> Tensor:
    """dropout(x)."""
    out = torch.empty_like(x)
    _c().mask(x.numel(), x.data_ptr(), *_given(dropped), out.data_ptr(), _threads())
    return out


def relu_mask_(x: Tensor, dropped: Dropped | None) -> Tensor:
    """dropout(relu(x)), in place."""
    _c().relu_mask(x.numel(), x.data_ptr(), *_given(dropped), x.data_ptr(), _threads())
    return x


def relu_mask_back_(grad: Tensor, result: Tensor, kept: float) -> Tensor:
    """The gradient of x from that of dropout(relu(x)), in place, by what came out."""
    _c().relu_mask_back(grad.numel(), grad.data_ptr(), result.data_ptr(), kept, grad.data_ptr(), _threads())
    return grad


def softmax_loss_(z: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Logits become softmax(z) − (1 − ε) e_y; the NLL and z_y of each row."""
    nll, chosen = z.new_empty(z.shape[0]), z.new_empty(z.shape[0])
    given = z.data_ptr(), target.data_ptr(), smoothing, nll.data_ptr(), chosen.data_ptr()
    _c().softmax_loss(*z.shape, *given, _threads())
    return nll, chosen


def _threads() -> int:
    return torch.get_num_threads()


def can_multiply(weight: Tensor) -> bool:
    """Whether a matrix is small enough that ours is the fastest product, and made of whole vectors."""
    outs, ins = weight.shape
    return outs * ins <= LARGEST and not outs % lanes() and not ins % lanes()


def product(x_rd: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b."""
    out = x_rd.new_empty(x_rd.shape[0], weight.shape[0])
    given = x_rd.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr()
    _c().product(x_rd.shape[0], weight.shape[1], weight.shape[0], *given, out.data_ptr(), _threads())
    return out


def product_back(grad_rd: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x, g W."""
    dx = grad_rd.new_empty(grad_rd.shape[0], weight.shape[1])
    sizes = grad_rd.shape[0], weight.shape[1], weight.shape[0]
    _c().product_back(*sizes, grad_rd.data_ptr(), weight.data_ptr(), dx.data_ptr(), _threads())
    return dx


def weight_back(grad_rd: Tensor, x_rd: Tensor) -> Tensor:
    """The gradient of W, gᵀ x."""
    dw = grad_rd.new_empty(grad_rd.shape[1], x_rd.shape[1])
    sizes = grad_rd.shape[0], x_rd.shape[1], grad_rd.shape[1]
    _c().weight_back(*sizes, grad_rd.data_ptr(), x_rd.data_ptr(), dw.data_ptr(), _threads())
    return dw


def draw(seed: int, count: int) -> Tensor:
    """Random 64-bit numbers, those of NumPy's SFC64."""
    out = torch.empty(count, dtype=torch.int64)
    _c().draw(seed, out.data_ptr(), count)
    return out
