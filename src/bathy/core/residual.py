"""The one equation: `post(skip · x + branch · f(pre(x)))`.

A scheme chooses the parts; everything else in bathy sees a `Residual` only.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bathy.core.norms import LayerNorm
from bathy.core.norms import Norm as MakeNorm
from bathy.core.untouched import are, untouched, usual_rate
from bathy.kernels.choose import own_sublayer
from bathy.kernels.norm import Norm
from bathy.kernels.products import linear
from bathy.kernels.shortcut import weighted
from bathy.kernels.sublayer import Around, Inner, sublayer


class Scale(nn.Module):
    """omega · x, where omega is a constant, a learned number, or a learned vector of `width`.

    On the shortcut omega is Admin's ω; on the branch it is ReZero's α, FixUp's scale or LayerScale's λ.
    """

    omega: float | nn.Parameter

    def __init__(self, value: float, *, learned: bool = False, width: int | None = None) -> None:
        super().__init__()
        if learned:
            self.omega = nn.Parameter(torch.full(() if width is None else (width,), float(value)))
        else:
            self.omega = float(value)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.omega

    def extra_repr(self) -> str:
        if isinstance(self.omega, float):
            return f"{self.omega:.4g}"
        return f"learned, {self.omega.numel()} value{'s' if self.omega.numel() > 1 else ''}"


class Shift(nn.Module):
    """x + b with one learned number b, 0 at the start: FixUp's bias."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


@dataclass(frozen=True)
class Matrix:
    """Rows of a matrix that have one role in a branch: q, k, v, out, gate, fc1 or fc2; of any module, not only `nn.Linear`."""

    role: str
    module: nn.Module
    """The module that has the parameters."""
    rows: slice = field(default_factory=lambda: slice(None))
    reads: bool = False
    """Whether its input is the stream, so that a factor on the stream can be divided out of its columns."""
    name: str = "weight"
    """The weight's name in its module, e.g. in_proj_weight."""
    bias_name: str = "bias"
    transposed: bool = False
    """Whether the weight is stored as inputs × outputs, as GPT-2 does."""

    @property
    def parameter(self) -> nn.Parameter:
        """The whole parameter, which other matrices may share."""
        return getattr(self.module, self.name)

    @property
    def weight(self) -> Tensor:
        """A view of the weight's rows, outputs × inputs."""
        return self._view(self.parameter)

    @property
    def grad(self) -> Tensor | None:
        """A view of the gradient's rows."""
        grad = self.parameter.grad
        return None if grad is None else self._view(grad)

    @property
    def bias(self) -> Tensor | None:
        """A view of the bias's rows."""
        bias = getattr(self.module, self.bias_name, None)
        return None if bias is None else bias[self.rows]

    def _view(self, weight: Tensor) -> Tensor:
        return (weight.T if self.transposed else weight)[self.rows]


class Projections(nn.Linear):
    """Linear maps of one input to several widths, the rows of one matrix; gives them apart."""

    def __init__(self, width: int, sizes: Sequence[int], bias: bool = True) -> None:
        super().__init__(width, sum(sizes), bias)
        self.sizes = tuple(sizes)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return linear(x, self.weight, self.bias).split(self.sizes, dim=-1)


class Branch(nn.Module, ABC):
    """What a residual connection goes round: attention or feed-forward. Says which matrices it has and what they do."""

    kind: str
    activation: nn.Module
    """The feed-forward's non-linearity; attention has none."""
    inner: nn.Module
    """Applied before the last matrix: nothing, Sub-LN's norm, or FixUp's shift."""
    inner_width: int
    scale: float
    """Factor on q · kᵀ; feed-forward has none."""
    dropout: nn.Module
    """Applied last."""

    @abstractmethod
    def matrices(self) -> list[Matrix]:
        """The branch's matrices by role."""

    def scale_(self, **gains: float) -> None:
        """Multiply the matrices of the named roles, e.g. `scale_(v=0.5, out=0.5)`; roles the branch lacks are passed over."""
        with torch.no_grad():
            for matrix in self.matrices():
                matrix.weight.mul_(gains.get(matrix.role, 1.0))

    def unfused(self, role: str) -> float:
        """Undoes the gain below 1 that Xavier gives q, k and v when they are drawn as one matrix: √2 where all are D × D."""
        matrices = {matrix.role: matrix.weight for matrix in self.matrices()}
        if role not in ("q", "k", "v") or role not in matrices:
            return 1.0
        rows, width = sum(len(matrices[part]) for part in ("q", "k", "v")), matrices[role].shape[1]
        return math.sqrt((rows + width) / (len(matrices[role]) + width))

    def inner_kernel(self, x: Tensor, *context: Any) -> Inner | None:
        """f of x as a part of a fused sub-layer, without its last dropout; None where it has no such form."""
        return None

    def drop_biases_(self) -> None:
        """Make all linear layers bias-free."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.register_parameter("bias", None)


@dataclass(frozen=True)
class Place:
    """Where a residual stands: what a scheme may build its constants on."""

    scheme: str
    """Name of the scheme that builds it."""
    stack: str
    """'encoder' or 'decoder'."""
    layer: int
    """Layer in its stack, from 1."""
    index: int
    """Sub-layer in its stack, from 1."""
    sites: int
    """Sub-layers in its stack: n."""
    encoder_layers: int
    """N of the whole model, 0 for decoder-only."""
    decoder_layers: int
    """M of the whole model, 0 for encoder-only."""
    width: int
    init: str = "xavier"
    """Name of the initialisation that drew the branch."""
    base_width: int = 256
    base_layers: int = 2
    """The small model whose learning rate CompleteP carries over."""
    make_norm: MakeNorm = LayerNorm
    learn_first: bool = False
    """Whether Admin's first sub-layer has a learned ω too."""
    shared: dict[str, nn.Module] = field(default_factory=dict, compare=False)
    """Parts that the sub-layers of one layer share, such as ReZero's α."""

    @property
    def layers(self) -> int:
        """Layers of this stack."""
        return self.encoder_layers if self.stack == "encoder" else self.decoder_layers

    @property
    def wider(self) -> float:
        """m: the width in widths of the base model."""
        return self.width / self.base_width

    @property
    def deeper(self) -> float:
        """The layers of this stack in those of the base model."""
        return self.layers / self.base_layers

    @property
    def paired(self) -> bool:
        """Whether the model has both an encoder and a decoder."""
        return self.encoder_layers > 0 and self.decoder_layers > 0

    @property
    def model_sites(self) -> int:
        """Sub-layers of the whole model: 2N + 3M, or 2 per layer of a single stack."""
        if self.paired:
            return 2 * self.encoder_layers + 3 * self.decoder_layers
        return 2 * self.layers

    def norm(self) -> nn.Module:
        """A norm over the stream."""
        return self.make_norm(self.width)


class Residual(nn.Module):
    """One residual site: post(skip · x + branch · f(pre(x)))."""

    def __init__(
        self,
        f: Branch,
        place: Place,
        *,
        pre: nn.Module | None = None,
        post: nn.Module | None = None,
        skip: Scale | None = None,
        branch: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.place, self.f = place, f
        self.pre, self.post = pre or nn.Identity(), post or nn.Identity()
        self.skip, self.branch = skip or nn.Identity(), branch or nn.Identity()

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        fused = self.fused(x, *context) if self.training else None
        return self.post(self.add(x, self.branch(self.f(self.pre(x), *context)))) if fused is None else fused

    def fused(self, x: Tensor, *context: Any) -> Tensor | None:
        """The same as one node of autograd, for a CPU; None where a part has no such form, or someone hooked into one."""
        around = self.around() if untouched(self) else None
        inner = None if around is None else self.f.inner_kernel(x, *context)
        if around is None or inner is None or not own_sublayer(x, *around.parameters(), *inner.parameters()):
            return None
        return sublayer(x, around, inner, context[0] if self.f.kind == "cross_attention" else None)

    def around(self) -> Around | None:
        """The parts but for f, where all of them are plain."""
        rate = usual_rate(self.f.dropout)
        known = are(nn.Identity, self.branch) and type(self.skip) in (nn.Identity, Scale)
        if rate is None or not known or not {type(self.pre), type(self.post)} <= {nn.Identity, LayerNorm}:
            return None
        omega = self.skip.omega if isinstance(self.skip, Scale) else 1.0
        return Around(_norm_parts(self.pre), _norm_parts(self.post), omega, rate)

    def add(self, x: Tensor, a: Tensor) -> Tensor:
        """skip · x + a, in one pass over memory."""
        if isinstance(self.skip, nn.Identity):
            return x + a
        return weighted(a, x, self.skip.omega, self.training)


def _norm_parts(norm: nn.Module) -> Norm | None:
    return Norm(norm.weight, norm.bias, norm.eps) if isinstance(norm, LayerNorm) else None


def current_name(name: str) -> str:
    """The name of a module, parameter or site of our own model as it is now; version 0.1 said encoder_attention."""
    return _OLD_CROSS_ATTENTION.sub(r"\1cross_attention", name)


_OLD_CROSS_ATTENTION = re.compile(r"^(decoder\.layers\.\d+\.)encoder_attention\b")


def residuals(model: nn.Module) -> Sequence[tuple[str, Residual]]:
    """Every residual of the model with its name, in the order of execution."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, Residual)]
