"""What a site is: one residual connection, its norm, the matrices around it, and moments at which it can be watched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from bathy.residual import Matrix, Residual, Scale

Moment = Literal["input", "branch", "sum", "output"]
"""When a site is watched: x as it comes in, a = branch · f(pre(x)), b = skip · x + a, and what comes out."""

Position = Literal["post", "pre", "both", "none"]
POSITIONS: dict[tuple[bool, bool], Position] = {
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Site(ABC):
    """One residual connection, post(ω · x + a). Admin, folding and the clinic see nothing else of a model."""

    name: str
    """Path of the connection in the model, e.g. encoder.layers.0.ffn."""
    stack: str
    """The chain it belongs to, e.g. encoder."""
    kind: str
    """self_attention, encoder_attention, ffn, or unknown."""
    layer: int
    """Layer in its stack, from 1."""
    index: int
    """Sub-layer in its stack, from 1."""
    position: Position
    """Where the norm stands: after the sum, before the branch, at both places, or nowhere."""
    post: nn.Module | None
    """The norm that reads the sum."""
    matrices: list[Matrix]
    """The branch's matrices; those with `reads` take the stream as their input."""
    width: int
    """Dimensions of the stream."""
    calls: int = 1
    """How often one forward pass runs it: more than once where a model uses its modules again."""
    obstacle: str = ""
    """Why no ω can be put on its shortcut; empty when one can."""
    stuck: str = ""
    """Why an ω on its shortcut could not be folded away; empty when it could."""

    @property
    def free(self) -> bool:
        """Whether Admin gives it an ω: after the sum stands a norm, and it is not a stack's first (whose ω is 1)."""
        return self.position in ("post", "both") and (self.index > 1 or self.calls > 1)

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

        'branch' comes before the sum: an ω set there is the one the sum uses.
        """


@dataclass(frozen=True, eq=False, kw_only=True)
class DeclaredSite(Site):
    """A site of our own models: a `Residual` says itself what it is."""

    residual: Residual

    @property
    def scheme(self) -> str:
        """Name of the scheme that built the residual."""
        return self.residual.place.scheme

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
    """The sites that the model's own residuals declare, in the order of execution."""
    return [_declare(name, module) for name, module in model.named_modules() if isinstance(module, Residual)]


def _declare(name: str, residual: Residual) -> DeclaredSite:
    place = residual.place
    before, after = _is_norm(residual.pre), _is_norm(residual.post)
    return DeclaredSite(
        name=name,
        stack=place.stack,
        kind=residual.f.kind,
        layer=place.layer,
        index=place.index,
        position=POSITIONS[before, after],
        post=residual.post if after else None,
        matrices=residual.f.matrices(),
        width=place.width,
        residual=residual,
    )


def _is_norm(module: nn.Module) -> bool:
    """Whether the module, or the first of a chain, is one of our norms."""
    return hasattr(module[0] if isinstance(module, nn.Sequential) else module, "scale_")


def variance(x: Tensor, rows: Tensor) -> Tensor:
    """Population variance in float32 over all elements of the given rows of x (tokens flattened), one global mean removed."""
    return torch.var(x.flatten(0, -2).index_select(0, rows).float(), correction=0)
