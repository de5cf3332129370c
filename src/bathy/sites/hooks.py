"""Sites of other people's models: watched, and given ω, by hooks on modules the model already has.

At a Post-LN site the norm's input b = x + a becomes b + (ω − 1)·x = ω·x + a; x is taken where a module of the branch gets it.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bathy.console import table
from bathy.errors import ModelError
from bathy.pages.shown import Part, Shown
from bathy.sites.batch import Batch
from bathy.sites.graph import Side
from bathy.sites.site import Handle, Moment, Site, Watch
from bathy.sites.spots import Seen


@dataclass(frozen=True, eq=False)
class Tap:
    """A place where a module takes or gives a tensor on its way: the `where`-th argument, or part of the output."""

    module: nn.Module
    side: Side
    where: tuple[Any, ...]
    copy: bool = False
    """Whether a later in-place addition would change the tensor."""
    factor: float = 1.0
    """By which number the model has multiplied the tensor at this place."""

    def on(self, watch: Watch, first: bool = False) -> RemovableHandle:
        """Call `watch` with the tensor at every call of the module; `first`: ahead of hooks that are there already."""
        if self.side == "input":
            return self.module.register_forward_pre_hook(_Taken(self, watch), with_kwargs=True, prepend=first)
        return self.module.register_forward_hook(_Given(self, watch), with_kwargs=True, prepend=first)

    def show(self, watch: Watch, value: Any) -> None:
        """Call `watch` with the tensor, if this call of the module has one at this place."""
        try:
            tensor = self.pick(value)
        except (LookupError, AttributeError, TypeError):
            return
        watch(tensor)

    def pick(self, value: Any) -> Tensor:
        """The tensor within the module's arguments or output."""
        for key in self.where:
            value = getattr(value, key) if isinstance(key, str) and not isinstance(value, Mapping) else value[key]
        if self.factor != 1:
            return value / self.factor
        return value.clone() if self.copy else value


@dataclass
class _Taken:
    """A hook that shows an argument to `watch`; a class, so that a model which carries it can be copied and pickled."""

    tap: Tap
    watch: Watch

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.tap.show(self.watch, {"args": args, "kwargs": kwargs})


@dataclass
class _Given:
    """A hook that shows part of the output to `watch`."""

    tap: Tap
    watch: Watch

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.tap.show(self.watch, output)


@dataclass
class Kept:
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
class Sites(Shown, Sequence["TracedSite"]):
    """The sites of a model in the order of execution, and the additions that were not taken for one. Prints as tables."""

    batch: Batch
    """What found them; folding runs it again to check itself."""
    sites: list[TracedSite] = field(default_factory=list)
    passed_over: list[PassedOver] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a reader of the sites should know: layers without one, stacks that are pieces of one list of layers."""
    groups: dict[str, str] = field(default_factory=dict)
    """For a stack that is one of several pieces of the same list of layers, the name of that list."""
    width: ClassVar[int] = 240

    def __getitem__(self, index: Any) -> Any:
        return self.sites[index]

    def __len__(self) -> int:
        return len(self.sites)

    def parts(self) -> list[Part]:
        """The sites, what a reader should know of them, and the additions that are none."""
        rows = [(s.name, s.stack, s.layer, s.index, s.kind, s.placement, ", ".join(m.role for m in s.matrices)) for s in self]
        shown = table(f"{len(self)} residual sites", ["site", "stack", "layer", "i", "kind", "norm", "matrices"], rows)
        found: list[Part] = [shown, *self.notes, *self._unwatched()]
        if not self.passed_over:
            return found
        counts = Counter((_any_number(other.path), other.reason) for other in self.passed_over)
        others = [(path or "(the model itself)", count, reason) for (path, reason), count in counts.items()]
        return [*found, table("additions that are no residual", ["in", "count", "why"], others)]

    def _unwatched(self) -> list[str]:
        """A line for each site that cannot be watched whole."""
        return [
            f"{s.name}: its {', '.join(s.unwatched)} cannot be watched: {next(iter(s.unwatched.values()))}"
            for s in self
            if s.unwatched
        ]


def _any_number(path: str) -> str:
    """A path with n for each number, so that like places of all layers are one row."""
    return ".".join("n" if part.isdigit() else part for part in path.split("."))


def _tell_at_save(module: nn.Module, *_: Any) -> None:
    """Warn where transformers' own functions save a model whose ω they would not load."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "save_pretrained":
            text = "from_pretrained drops ω, which it does not know: save bathy.fold(model) instead, or use bathy.save"
            warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno, registry=_told(frame.f_locals))
            return


def _told(where: dict[str, Any]) -> Any:
    """What makes one call of save_pretrained warn once, not once for each ω."""
    folder = str(where.get("save_directory", ""))
    return _TOLD.setdefault(folder, {})


_TOLD: dict[str, dict[str, Any]] = {}


class Shortcut:
    """ω on one site's shortcut: adds (ω − 1)·x to what the norm reads. ω is a parameter of the norm, or a constant.

    A constant is a buffer of the norm: a saved state has it, and a model without ω does not load that state in silence.
    """

    def __init__(self, site: TracedSite) -> None:
        self.site, self.x = site, Kept()
        assert site.post is not None
        self.handles = [site.taps["input"].on(self.x.put), site.post.register_forward_pre_hook(self.add, with_kwargs=True)]
        self.handles.append(site.post.register_state_dict_post_hook(_tell_at_save))
        self.told = False

    def add(self, norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The norm's arguments with ω·x + a in place of x + a."""
        self._tell_if_frozen(norm)
        side, key = self.site.taps["sum"].where
        x, b = self.x.take(), (args if side == "args" else kwargs)[key]
        if b.is_nested:  # as nn.TransformerEncoder packs padded batches in evaluation
            parts = [self._sum(norm, *pair) for pair in zip(b.unbind(), x.unbind(), strict=True)]
            b = torch.nested.as_nested_tensor(parts)
        else:
            b = self._sum(norm, b, x)
        if side == "args":
            return (*args[:key], b, *args[key + 1 :]), kwargs
        return args, kwargs | {key: b}

    def _tell_if_frozen(self, norm: nn.Module) -> None:
        """Warn once of an ω that is to be trained and is not, as peft leaves it when it is applied afterwards."""
        omega = getattr(norm, self.site.omega_name)
        if isinstance(omega, nn.Parameter) and norm.training and not self.told and not omega.requires_grad:
            self.told = True
            warnings.warn(
                f"the ω of {self.site.name} is frozen (get_peft_model freezes what it does not know): call bathy.stabilise_ "
                "after it, or set requires_grad on the parameters named bathy_omega",
                stacklevel=2,
            )

    def _sum(self, norm: nn.Module, b: Tensor, x: Tensor) -> Tensor:
        x = x if x.shape == b.shape else x.reshape(b.shape)
        factor = self.site.skip * self.site.taps["sum"].factor
        omega: Tensor = getattr(norm, self.site.omega_name)
        if not isinstance(omega, nn.Parameter):
            omega = omega.to(b.dtype)
        return torch.addcmul(b, x, omega - 1, value=factor)

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self.handles:
            handle.remove()


@dataclass(frozen=True, eq=False, kw_only=True)
class TracedSite(Site):
    """A site that tracing found in anyone's model."""

    taps: dict[Moment, Tap]
    """Where modules take or give the tensor of each moment; a moment that no module shows is missing."""
    unwatched: dict[Moment, str] = field(default_factory=dict)
    spots: Sequence[Seen] = ()
    """Where torch computes x and a, for each execution: the way to measure what no module shows."""
    whole: bool = True
    """Whether the shortcut is x times a number, so that of x, a and b each can be had from the others."""
    found: Sites = field(repr=False)
    """All sites of the model, this one among them."""

    def missing(self) -> dict[Moment, str]:
        """Moments that no module shows and that cannot be computed from others, with the reason."""
        seen = set(self.taps)
        if "input" in seen and seen & {"branch", "sum"} and self.whole:
            seen |= {"branch", "sum"}
        moments: tuple[Moment, ...] = ("input", "branch", "sum", "output")
        return {moment: "no module of the model takes or gives it" for moment in moments if moment not in seen}

    @property
    def omega_name(self) -> str:
        """Name of ω among the norm's parameters."""
        return f"bathy_omega_{self.index}"

    @property
    def omega(self) -> nn.Parameter | float:
        if self._shortcut() is None:
            return 1.0
        omega: nn.Parameter | Tensor = getattr(self.post, self.omega_name)
        return omega if isinstance(omega, nn.Parameter) else float(omega)

    def attach_(self, constant: float | None = None) -> None:
        if self.obstacle:
            raise ModelError(f"{self.name} can have no ω: {self.obstacle}")
        self.detach_()
        assert self.post is not None
        like = self._neighbour()
        if constant is None:
            ones = torch.ones(self.width, dtype=like.dtype, device=like.device)
            self.post.register_parameter(self.omega_name, nn.Parameter(ones))
        else:
            exact = torch.promote_types(like.dtype, torch.float32)
            self.post.register_buffer(self.omega_name, torch.tensor(constant, dtype=exact, device=like.device))
        Shortcut(self)

    def _neighbour(self) -> Tensor:
        """A parameter of the model from which ω takes device and dtype; a norm may have none."""
        near = [self.post, *(matrix.module for matrix in self.matrices), *(tap.module for tap in self.taps.values())]
        parameters = (parameter for module in near if module is not None for parameter in module.parameters())
        return next(parameters, torch.ones(()))

    def detach_(self) -> None:
        shortcut = self._shortcut()
        if shortcut is not None and self.post is not None:
            shortcut.remove()
            delattr(self.post, self.omega_name)

    def _shortcut(self) -> Shortcut | None:
        hooked = () if self.post is None else shortcuts(self.post)
        return next((shortcut for shortcut in hooked if shortcut.site.index == self.index), None)

    def on(self, moment: Moment, watch: Watch) -> Handle:
        if moment in self.unwatched:
            raise ModelError(f"the {moment} of {self.name} cannot be watched: {self.unwatched[moment]}")
        if moment in self.taps:
            return self.taps[moment].on(watch)
        return self._on_difference(watch) if moment == "branch" else self._on_sum(watch)

    def _on_difference(self, watch: Watch) -> Handle:
        """The branch as b − x, before ω is applied: for one that no module gives, e.g. after dropout as a function."""
        x = Kept()

        def subtract(b: Tensor) -> None:
            watch(torch.sub(b, x.take().reshape(b.shape), alpha=self.skip))

        return Handles([self.taps["input"].on(x.put), self.taps["sum"].on(subtract, first=True)])

    def _on_sum(self, watch: Watch) -> Handle:
        """The sum as x + a, where no module takes or gives it."""
        x = Kept()

        def add(a: Tensor) -> None:
            watch(torch.add(a, x.take().reshape(a.shape), alpha=self.skip))

        return Handles([self.taps["input"].on(x.put), self.taps["branch"].on(add)])


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
