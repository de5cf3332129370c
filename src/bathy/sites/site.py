"""What a site is: one residual connection, its norm, the matrices around it, and moments at which it can be watched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bathy.core.residual import Branch, Matrix, Place, Scale

Moment = Literal["input", "branch", "sum", "output"]
"""When a site is watched: x as it comes in, a = branch · f(pre(x)), b = skip · x + a, and what comes out."""

Placement = Literal["post", "pre", "both", "none"]
PLACEMENTS: dict[tuple[bool, bool], Placement] = {
    (True, True): "both",
    (True, False): "pre",
    (False, True): "post",
    (False, False): "none",
}
"""Where norms stand: (before the branch, after the sum) to a word."""

Watch = Callable[[Tensor], object]


class Handle(Protocol):
    """What ends a watch."""

    def remove(self) -> None:
        """Watch no longer."""


@dataclass(frozen=True)
class Output:
    """A parameter by which the size of a branch's output can be set: its last matrix, or γ of the norm that ends it."""

    module: nn.Module
    name: str
    path: str
    """Name of the parameter in the model."""
    offset: float = 0.0
    """1 for a norm that multiplies by 1 + γ."""
    norm: bool = False

    @property
    def parameter(self) -> Tensor:
        """The parameter."""
        return getattr(self.module, self.name)

    def scale_(self, factor: float) -> None:
        """Multiply what the parameter stands for."""
        with torch.no_grad():
            self.parameter.add_(self.offset).mul_(factor).sub_(self.offset)


@runtime_checkable
class DeclaresSite(Protocol):
    """A module that says itself what it is: post(skip · x + branch · f(pre(x))). `bathy.Residual` is one."""

    place: Place
    f: Branch
    pre: nn.Module
    post: nn.Module
    skip: nn.Module
    branch: nn.Module
    register_forward_pre_hook: Callable[..., Handle]
    register_forward_hook: Callable[..., Handle]


@dataclass(frozen=True, eq=False, kw_only=True)
class Site(ABC):
    """One residual connection, post(ω · x + a). Admin, folding and the clinic see nothing else of a model."""

    name: str
    """Path of the connection in the model, e.g. encoder.layers.0.ffn."""
    stack: str
    """The chain it belongs to, e.g. encoder."""
    kind: str
    """self_attention, cross_attention, ffn, or mixing for a branch without matrices."""
    layer: int
    """Layer in its stack, from 1."""
    index: int
    """Sub-layer in its stack, from 1."""
    placement: Placement
    """Where the norm stands: after the sum, before the branch, at both places, or nowhere."""
    post: nn.Module | None
    """The norm that reads the sum."""
    matrices: list[Matrix]
    """The branch's matrices; those with `reads` take the stream as their input."""
    width: int
    """Dimensions of the stream."""
    scheme: str = ""
    """Name of the scheme that built it, where the model declares that; empty where the site was found."""
    calls: int = 1
    """How often one forward pass runs it: more than once where a model uses its modules again."""
    streams: Sequence[int] = ()
    """Which stream each of these runs belongs to: (0, 0) where one passes twice, (0, 1) where two do, as of a siamese model."""
    skip: float = 1.0
    """Constant that the model itself puts on the shortcut: 1 for x + a."""
    obstacle: str = ""
    """Why no ω can be put on its shortcut; empty when one can."""
    stuck: str = ""
    """Why an ω on its shortcut could not be folded away; empty when it could."""
    outputs: Sequence[Output] = ()
    """Parameters in which the branch's output is linear, one on every way to the sum: multiplying them multiplies it."""
    unclear: str = ""
    """Why the branch's output cannot be scaled by `outputs`; empty when it can."""
    unwatched: Mapping[Moment, str] = field(default_factory=dict)
    """Moments that cannot be watched, each with the reason."""

    @property
    def free(self) -> bool:
        """Whether Admin gives it an ω: after the sum stands a norm, and it is not a stack's first (whose ω is 1)."""
        return self.placement in ("post", "both") and (self.index > 1 or self.repeats > 1)

    @property
    def repeats(self) -> int:
        """How often one stream passes it."""
        return max(Counter(self.streams).values(), default=self.calls)

    def stream(self, run: int) -> int:
        """Which stream a run of it belongs to."""
        return self.streams[run] if run < len(self.streams) else 0

    @property
    @abstractmethod
    def omega(self) -> nn.Parameter | float:
        """The factor on the shortcut; 1 where there is none."""

    @abstractmethod
    def attach_(self, constant: float | None = None) -> None:
        """Give the shortcut a learned vector ω of ones, or a constant ω."""

    @abstractmethod
    def detach_(self) -> None:
        """Take ω off the shortcut."""

    @abstractmethod
    def on(self, moment: Moment, watch: Watch) -> Handle:
        """Call `watch` with the tensor of that moment in every forward pass, until the handle is removed.

        'branch' comes before the sum: an ω set there is the one the sum uses. A moment of `unwatched` is an error.
        """


@dataclass(frozen=True, eq=False, kw_only=True)
class DeclaredSite(Site):
    """A site that the model itself declares: one of its modules is a `DeclaresSite`."""

    residual: DeclaresSite

    @property
    def omega(self) -> nn.Parameter | float:
        skip = self.residual.skip
        return skip.omega if isinstance(skip, Scale) else 1.0

    def attach_(self, constant: float | None = None) -> None:
        like = self.matrices[0].weight
        skip = Scale(1.0, learned=True, width=self.width) if constant is None else Scale(constant)
        self.residual.skip = skip.to(like.device, like.dtype)

    def detach_(self) -> None:
        self.residual.skip = nn.Identity()

    def on(self, moment: Moment, watch: Watch) -> Handle:
        def before(module: nn.Module, args: tuple[Any, ...]) -> None:
            watch(args[0])

        def after(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            watch(output)

        residual = self.residual
        if moment in ("input", "sum"):
            return (residual if moment == "input" else residual.post).register_forward_pre_hook(before)
        return (residual if moment == "output" else residual.branch).register_forward_hook(after)


def declared_sites(model: nn.Module) -> list[DeclaredSite]:
    """The sites that the model itself declares, in the order of execution; none for most models."""
    return [_declare(name, module) for name, module in model.named_modules() if isinstance(module, DeclaresSite)]


def _declare(name: str, residual: DeclaresSite) -> DeclaredSite:
    place = residual.place
    before, after = _is_norm(residual.pre), _is_norm(residual.post)
    return DeclaredSite(
        name=name,
        stack=place.stack,
        kind=residual.f.kind,
        layer=place.layer,
        index=place.index,
        placement=PLACEMENTS[before, after],
        post=residual.post if after else None,
        matrices=residual.f.matrices(),
        width=place.width,
        scheme=place.scheme,
        residual=residual,
    )


def _is_norm(module: nn.Module) -> bool:
    """Whether the module, or the first of a chain, is one of our norms."""
    return hasattr(module[0] if isinstance(module, nn.Sequential) else module, "scale_")


def variance(x: Tensor, rows: Tensor) -> Tensor:
    """Population variance in float32 over all elements of the given rows of x (tokens flattened), one global mean removed."""
    return torch.var(x.flatten(0, -2).index_select(0, rows).float(), correction=0)
