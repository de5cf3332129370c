"""Sites of other people's models: watched, and given ω, by hooks on modules the model already has.

At a Post-LN site the norm's input b = x + a becomes b + (ω − 1)·x = ω·x + a; x is taken where a module of the branch gets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bathy.console import as_text, table
from bathy.errors import ModelError
from bathy.sites.batch import Batch
from bathy.sites.graph import Side
from bathy.sites.site import Handle, Moment, Site, Watch


@dataclass(frozen=True, eq=False)
class Tap:
    """A place where a module takes or gives a tensor on its way: the `where`-th argument, or part of the output."""

    module: nn.Module
    side: Side
    where: tuple[Any, ...]
    copy: bool = False
    """Whether a later in-place addition would change the tensor."""

    def on(self, watch: Watch, first: bool = False) -> RemovableHandle:
        """Call `watch` with the tensor at every call of the module; `first`: ahead of hooks that are there already."""
        if self.side == "input":
            return self.module.register_forward_pre_hook(_Taken(self, watch), with_kwargs=True, prepend=first)
        return self.module.register_forward_hook(_Given(self, watch), with_kwargs=True, prepend=first)

    def pick(self, value: Any) -> Tensor:
        """The tensor within the module's arguments or output."""
        for key in self.where:
            value = value[key]
        return value.clone() if self.copy else value


@dataclass
class _Taken:
    """A hook that shows an argument to `watch`; a class, so that a model which carries it can be copied and pickled."""

    tap: Tap
    watch: Watch

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.watch(self.tap.pick({"args": args, "kwargs": kwargs}))


@dataclass
class _Given:
    """A hook that shows part of the output to `watch`."""

    tap: Tap
    watch: Watch

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.watch(self.tap.pick(output))


@dataclass
class Held:
    """A tensor kept from one hook to another within a forward pass; a copied or pickled model does not keep it."""

    tensor: Tensor | None = None

    def put(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def take(self) -> Tensor:
        tensor, self.tensor = self.tensor, None
        if tensor is None:
            raise ModelError("the norm of a residual ran without its branch; was part of a layer called by itself?")
        return tensor

    def __getstate__(self) -> dict[str, Any]:
        return {"tensor": None}


@dataclass(frozen=True)
class PassedOver:
    """An addition of two tensors that is no residual connection, and why."""

    path: str
    """Module in which it happens."""
    reason: str


@dataclass
class Sites(Sequence["TracedSite"]):
    """The sites of a model in the order of execution, and the additions that were not taken for one. Prints as tables."""

    batch: Batch
    """What found them; folding runs it again to check itself."""
    sites: list[TracedSite] = field(default_factory=list)
    passed_over: list[PassedOver] = field(default_factory=list)

    def __getitem__(self, index: Any) -> Any:
        return self.sites[index]

    def __len__(self) -> int:
        return len(self.sites)

    def __str__(self) -> str:
        rows = [(s.name, s.stack, s.layer, s.index, s.kind, s.position, ", ".join(m.role for m in s.matrices)) for s in self]
        text = as_text(
            table(f"{len(self)} residual sites", ["site", "stack", "layer", "i", "kind", "norm", "matrices"], rows), 240
        )
        if not self.passed_over:
            return text
        counts = Counter((_any_number(other.path), other.reason) for other in self.passed_over)
        others = [(path or "(the model itself)", count, reason) for (path, reason), count in counts.items()]
        return text + "\n" + as_text(table("additions that are no residual", ["in", "count", "why"], others), 240)


def _any_number(path: str) -> str:
    """A path with n for each number, so that like places of all layers are one row."""
    return ".".join("n" if part.isdigit() else part for part in path.split("."))


class Shortcut:
    """ω on one site's shortcut: adds (ω − 1)·x to what the norm reads. ω is a parameter of the norm, or a constant."""

    def __init__(self, site: TracedSite, constant: float | None) -> None:
        self.site, self.constant, self.x = site, constant, Held()
        assert site.post is not None
        self.handles = [site.taps["input"].on(self.x.put), site.post.register_forward_pre_hook(self.add)]

    def add(self, norm: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The norm's arguments with ω·x + a in place of x + a."""
        x, b = self.x.take(), args[0]
        if b.is_nested:  # as nn.TransformerEncoder packs padded batches in evaluation
            parts = [self._sum(norm, *pair) for pair in zip(b.unbind(), x.unbind(), strict=True)]
            return torch.nested.as_nested_tensor(parts), *args[1:]
        return self._sum(norm, b, x), *args[1:]

    def _sum(self, norm: nn.Module, b: Tensor, x: Tensor) -> Tensor:
        if self.constant is not None:
            return torch.add(b, x, alpha=self.constant - 1)
        return torch.addcmul(b, x, getattr(norm, self.site.omega_name) - 1)

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self.handles:
            handle.remove()


@dataclass(frozen=True, eq=False, kw_only=True)
class TracedSite(Site):
    """A site that tracing found in anyone's model."""

    taps: Mapping[Moment, Tap]
    """Where modules take or give the tensor of each moment; a moment that no module shows is missing."""
    found: Sites = field(repr=False)
    """All sites of the model, this one among them."""

    @property
    def omega_name(self) -> str:
        """Name of ω among the norm's parameters."""
        return f"bathy_omega_{self.index}"

    @property
    def omega(self) -> nn.Parameter | float:
        shortcut = self._shortcut()
        if shortcut is None:
            return 1.0
        return getattr(self.post, self.omega_name) if shortcut.constant is None else shortcut.constant

    def attach_(self, constant: float | None = None) -> None:
        if self.obstacle:
            raise ModelError(f"{self.name} can have no ω: {self.obstacle}")
        self.detach_()
        assert self.post is not None
        if constant is None:
            like = next(self.post.parameters(), self.matrices[0].weight)
            ones = torch.ones(self.width, dtype=like.dtype, device=like.device)
            self.post.register_parameter(self.omega_name, nn.Parameter(ones))
        Shortcut(self, constant)

    def detach_(self) -> None:
        shortcut = self._shortcut()
        if shortcut is not None and self.post is not None:
            shortcut.remove()
            self.post._parameters.pop(self.omega_name, None)

    def _shortcut(self) -> Shortcut | None:
        hooked = () if self.post is None else shortcuts(self.post)
        return next((shortcut for shortcut in hooked if shortcut.site.index == self.index), None)

    def on(self, moment: Moment, watch: Watch) -> Handle:
        if moment in self.taps:
            return self.taps[moment].on(watch)
        if moment == "branch" and {"input", "sum"} <= self.taps.keys():
            return self._on_difference(watch)
        raise ModelError(f"no module of the model takes or gives the {moment} of {self.name}, so it cannot be watched")

    def _on_difference(self, watch: Watch) -> Handle:
        """The branch as b − x, before ω is applied: for a branch that no module gives, e.g. after dropout as a function."""
        x = Held()

        def subtract(b: Tensor) -> None:
            watch(b - x.take())

        return Handles([self.taps["input"].on(x.put), self.taps["sum"].on(subtract, first=True)])


@dataclass
class Handles:
    """Several handles as one."""

    handles: list[RemovableHandle]

    def remove(self) -> None:
        """Remove all."""
        for handle in self.handles:
            handle.remove()


def shortcuts(module: nn.Module) -> Iterator[Shortcut]:
    """The ω that are hooked into a module itself."""
    for hook in module._forward_pre_hooks.values():
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, Shortcut):
            yield owner


def hooked_sites(model: nn.Module) -> Sites | None:
    """The sites of a model into which ω was hooked, as tracing once found them; None for any other model."""
    for module in model.modules():
        for shortcut in shortcuts(module):
            return shortcut.site.found
    return None
