"""The probe: a model, a batch and the model's sites, watched inside a context manager that leaves everything as it was.

Exams that only watch share one recorded pass: each has a `Recorder`, and all that are planned listen to the same forward pass
and to the backward pass after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from bathy.clinic.losses import Loss, loss_for
from bathy.clinic.readings import Reading
from bathy.errors import ModelError
from bathy.kernels.library import by_torch
from bathy.sites.batch import Batch, call, on_device_of, undisturbed
from bathy.sites.real_tokens import RealTokens, first_tokens
from bathy.sites.site import Moment, Site, declared_sites
from bathy.sites.trace import find_sites

PLACE = ("stack", "kind", "layer", "index")
"""Columns of a row that a site fills in."""

Watcher = Callable[[Site, Moment, Tensor], object]


def discover(model: nn.Module, batch: Batch | None) -> Sequence[Site]:
    """The model's sites in the order of execution; a model that declares none is traced on the batch."""
    sites = declared_sites(model)
    if not sites and batch is None:
        raise ModelError(f"{type(model).__name__} declares no sites; give a batch on which they can be found")
    return sites or find_sites(model, batch)  # type: ignore[arg-type]


@dataclass(kw_only=True)
class Labelled:
    """Makes rows that all carry the same label."""

    label: dict[str, Any] = field(default_factory=dict)
    """Columns that every row gets: model and step."""

    def reading(self, exam: str, quantity: str, value: float | Tensor, site: Site | str = "", **columns: Any) -> Reading:
        """A row, at a site, or at a module by name, where one is given."""
        number = value.item() if isinstance(value, Tensor) else value
        place = {"site": site} if isinstance(site, str) else {"site": site.name} | {key: getattr(site, key) for key in PLACE}
        return Reading(quantity, float(number), exam, **self.label | place | columns)


class Recorder:
    """What one exam keeps of the recorded pass. Subclasses say which moments they hear, and whether they need gradients."""

    moments: tuple[Moment, ...] = ()
    backward = False

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def hear(self, site: Site, moment: Moment, x: Tensor) -> None:
        """Keep what a site shows."""

    def listening(self) -> AbstractContextManager[Any]:
        """What stays open during the forward pass besides the sites' hooks."""
        return nullcontext()


R = TypeVar("R", bound=Recorder)


@dataclass
class Subject(Labelled):
    """What an exam looks at: a model in evaluation mode, a batch on its device, sites, real tokens and the objective."""

    model: nn.Module
    batch: Batch
    sites: Sequence[Site]
    real: RealTokens
    given: Loss | None = None
    """The objective, where one was given."""
    planned: tuple[type[Recorder], ...] = ()
    """Recorders that the first recorded pass has."""
    lr: float | None = None
    """Learning rate of the step whose output change is measured; 1e-5 where none is given."""
    loss_scale: float = 1.0
    seed: int = 0
    output: Any = None
    """What the recorded pass gave."""
    value: Tensor | None = None
    """The loss of the recorded pass, where there was a backward pass."""
    recorders: dict[type[Recorder], Recorder] = field(default_factory=dict)

    @property
    def stacks(self) -> dict[str, list[Site]]:
        """The sites of each stack."""
        found: dict[str, list[Site]] = {}
        for site in self.sites:
            found.setdefault(site.stack, []).append(site)
        return found

    @property
    def loss(self) -> Loss:
        """The objective: as given, else what fits the output."""
        return self.given or loss_for(self.output, self.batch)

    def forward(self) -> Any:
        """The model's output for the batch."""
        return call(self.model, self.batch)

    def recorded(self, kind: type[R]) -> R:
        """What a recorder of this kind heard; the first to ask has the pass made, for all that are planned."""
        if kind not in self.recorders:
            asked: list[type[Recorder]] = [*self.planned, kind]
            self._record([each for each in dict.fromkeys(asked) if each not in self.recorders])
        return cast(R, self.recorders[kind])

    def true_loss(self) -> Tensor:
        """The loss on the batch, from the recorded pass."""
        assert self.recorders, "the loss is asked for after a recorded pass"
        with torch.no_grad():
            return self.loss(self.output, self.batch) if self.value is None else self.value

    def _record(self, kinds: Iterable[type[Recorder]]) -> None:
        """One forward pass with these recorders, and a backward pass where one of them needs it."""
        recorders = {kind: kind(self) for kind in kinds}
        backward = any(kind.backward for kind in recorders)
        with ExitStack() as open_throughout, torch.set_grad_enabled(backward):
            with ExitStack() as open_forward:  # activation checkpointing runs layers again in the backward pass
                for kind, recorder in recorders.items():
                    hooks = watching(self.sites, _without_gradients(recorder.hear), *kind.moments)
                    (open_throughout if kind.backward else open_forward).enter_context(hooks)
                    open_forward.enter_context(recorder.listening())
                self.output = self.forward()
            if backward:
                loss = self.loss(self.output, self.batch)
                backward_of(loss * self.loss_scale)
                self.value = loss.detach()
        self.recorders |= recorders


def backward_of(loss: Tensor) -> None:
    """The backward pass; where the model's own code does not allow one, an error says that training would fail too."""
    try:
        loss.backward()
    except RuntimeError as error:
        raise ModelError(f"the model's backward pass fails, as it would in training: {str(error).splitlines()[0]}") from error


def _without_gradients(hear: Watcher) -> Watcher:
    """The watcher, with nothing that it computes recorded for the backward pass."""
    return torch.no_grad()(hear)


@contextmanager
def examined(
    model: nn.Module, batch: Batch, loss: Loss | None = None, tokens: int = 4096, **settings: Any
) -> Iterator[Subject]:
    """A subject for exams, in evaluation mode; weights, buffers, gradients, mode and random state come back as they were.

    Torch's own operations compute, because some exams listen to them: a pass has the same numbers with and without them.
    """
    batch = on_device_of(model, batch)
    sites = discover(model, batch)
    batch, real = first_tokens(model, batch, sites, tokens)
    with undisturbed(model), own_gradients(model), torch.enable_grad(), by_torch():
        model.eval()
        yield Subject(model, batch, sites, real, loss, **settings)


@contextmanager
def own_gradients(model: nn.Module) -> Iterator[None]:
    """A block in which gradients start empty; the old ones come back after it."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        yield
    finally:
        for parameter, grad in kept:
            parameter.grad = grad


@contextmanager
def own_weights(parameters: Sequence[Tensor]) -> Iterator[None]:
    """A block in which the parameters may be changed; their values come back bit by bit."""
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)


@contextmanager
def watching(sites: Sequence[Site], watch: Watcher, *moments: Moment) -> Iterator[None]:
    """Call `watch(site, moment, tensor)` for the forward passes inside the block.

    A site hears its own pass only: what two sites share, such as ReZero's α, is counted for the one that was entered last.
    """
    inside: list[Site | None] = [None]

    def enter(site: Site, x: Tensor) -> None:
        inside[0] = site
        if "input" in moments:
            watch(site, "input", x)

    def hear(site: Site, moment: Moment, x: Tensor) -> None:
        if inside[0] is site:
            watch(site, moment, x)

    with ExitStack() as handles:
        for site in sites:
            shown = _listen(handles, site, "input", partial(enter, site))
            for moment in moments:
                if moment != "input":
                    _listen(handles, site, moment, partial(hear if shown else watch, site, moment))
        yield


def _listen(handles: ExitStack, site: Site, moment: Moment, watch: Callable[[Tensor], object]) -> bool:
    """Watch the site until the handles are closed; whether it can be watched."""
    try:
        handles.callback(site.on(moment, watch).remove)
    except ModelError:
        return False
    return True


@dataclass(frozen=True)
class Unwatched:
    """A tensor of a site that no hook reaches, and why."""

    site: Site
    moment: Moment
    reason: str


def unwatched(sites: Sequence[Site]) -> list[Unwatched]:
    """What cannot be watched of these sites."""
    found = []
    for site in sites:
        for moment in get_args(Moment):
            try:
                site.on(moment, lambda x: None).remove()
            except ModelError as error:
                found.append(Unwatched(site, moment, str(error)))
    return found
