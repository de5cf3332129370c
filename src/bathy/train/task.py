"""What the engine asks of a task: a model, batches, a loss, and what a validation looks at.

The engine knows ranks, checkpoints, precision and schedules; a task knows its data and what its numbers mean. A task of your
own needs `build`, `batches` and `loss`; everything else has a default.

    class Digits(Task):
        def build(self): return MyModel()
        def batches(self, rank, size): return Shuffled((images, labels), rows=64, seed=1, rank=rank, size=size)
        def loss(self, model, batch): ...  # summed over the batch, twice: what is minimised, and the plain NLL

    bathy.train.fit(Digits(), Config(train=TrainConfig(steps=1000)), "runs/digits")
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bathy.errors import ConfigError

Readings = dict[str, float]
"""What a validation gave, by name; "loss" is among them."""


class Stream(Protocol):
    """An endless stream of a rank's training batches that can be resumed anywhere; `Shuffled` is one."""

    def __next__(self) -> Any: ...

    @property
    def epochs(self) -> int:
        """Passes over the data that are complete."""

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, as plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there."""


class Batch(Protocol):
    """A batch of a task that has its own class; tuples, lists, dicts and tensors need nothing."""

    def to(self, device: torch.device) -> Any: ...


@dataclass(frozen=True)
class Sketch:
    """A model and typical batches, made from the config alone, for `bathy train --plan`."""

    model: nn.Module
    forward: Callable[[int], Tensor]
    """Runs the model on a batch of so many tokens; what autograd keeps of it is counted."""
    flops: dict[str, float]
    """Operations of training for each kind of token, e.g. source token, target token."""
    corpus_tokens: float = 0
    """Tokens of an epoch; 0: unknown."""
    note: str = ""
    """What the batches are like."""


class Task(ABC):
    """What a model is trained for. Override what your task knows better than the defaults."""

    labels: Mapping[str, tuple[str, str]] = {}
    """Metrics of this task's own: key in metrics.jsonl to its label and format in the live view."""

    @abstractmethod
    def build(self) -> nn.Module:
        """A model with fresh weights; the random state is seeded before the call."""

    @abstractmethod
    def batches(self, rank: int, size: int) -> Stream:
        """This rank's share of the training data, one of `size` shares."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """(what is minimised, the plain loss that is reported), each summed over what `tokens` counts."""

    def check(self) -> None:  # noqa: B027, a task may have nothing to check
        """Raise a BathyError for whatever would fail later; called before any work begins."""

    def changed(self, config: Any) -> Task:
        """This task under a changed config, for a recovery that builds the model another way; as here: it has none."""
        return self

    def tokens(self, batch: Any) -> int:
        """What the loss is summed over: target tokens, or, as here, the rows of the first tensor."""
        return len(first_tensor(batch))

    def efficiency(self, batch: Any) -> float:
        """Real tokens among all of a padded batch."""
        return 1.0

    def inputs(self, batch: Any) -> Any:
        """What the model's forward takes: a tensor, a tuple or a dict. For Admin's profile, the clinic and the monitor."""
        return batch

    def held_out(self, rank: int, size: int) -> Iterable[Any]:
        """This rank's share of the validation batches; none: the run has no validation."""
        return ()

    def measure(self, model: nn.Module, batch: Any) -> dict[str, tuple[float, float]]:
        """Sum and weight of each reading over a held-out batch; "loss" first. The engine adds them over batches and ranks."""
        return {"loss": (float(self.loss(model, batch)[1]), float(self.tokens(batch)))}

    def show(self, model: nn.Module) -> dict[str, Any]:
        """What a person wants to see at a validation: a BLEU, a sample of text. Asked of the first rank only."""
        return {}

    def chance(self) -> float:
        """The loss of guessing, e.g. the unigram entropy; infinite where it is unknown: then nothing is compared with it."""
        return math.inf

    def failing(self, readings: Readings) -> str:
        """What a validation shows to be wrong although the loss falls, e.g. that the source is ignored; '' if nothing."""
        return ""

    def advice(self) -> str:
        """What to try when a run diverges, besides a lower rate and a longer warm-up; one clause, or ''."""
        return ""

    def flops(self, model: nn.Module, batch: Any) -> float:
        """Operations that training on the batch needs: six for each weight of a matrix and token, unless the task knows."""
        weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 1)
        return 6.0 * weights * self.tokens(batch)

    def sketch(self) -> Sketch:
        """A model and typical batches without any data; made and used in a FakeTensorMode."""
        raise ConfigError(f"{type(self).__name__} has no plan: it does not define `sketch`")

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """The model's own settings, kept in each checkpoint's meta.json so that the model can be built again."""
        return {}

    def write_files(self, run: Path) -> None:  # noqa: B027, nor anything to write
        """Put what belongs to the model, such as its tokenizer, into the run's folder."""


def first_tensor(batch: Any) -> Tensor:
    """The first tensor of a batch."""
    parts: Iterable[Any] = (
        batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else [batch]
    )
    for part in parts:
        if isinstance(part, Tensor):
            return part
    raise ConfigError(f"a batch of type {type(batch).__name__} has no tensor to count; define `tokens` in the task")


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch on a device: whatever has `.to`, and tuples, lists and dicts of it."""
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def take(stream: Stream, number: int) -> list[Any]:
    """The next batches, for gradient accumulation."""
    return [next(stream) for _ in range(number)]


def peek(stream: Stream) -> Any:
    """The next batch, which the stream will give again."""
    state = stream.state_dict()
    batch = next(stream)
    stream.load_state_dict(state)
    return batch


class Shuffled:
    """Rows of tensors of equal length in random order, each once per epoch, shared by ranks; resumes exactly."""

    def __init__(self, tensors: tuple[Tensor, ...], rows: int, seed: int = 1, rank: int = 0, size: int = 1) -> None:
        if len({len(tensor) for tensor in tensors}) != 1 or len(tensors[0]) < rows * size:
            lengths = ", ".join(str(len(tensor)) for tensor in tensors)
            raise ConfigError(f"tensors of {lengths} rows cannot give {size} rank(s) batches of {rows} rows each")
        self.tensors, self.rows, self.seed, self.rank, self.size = tensors, rows, seed, rank, size
        self.position = 0
        """Batches given so far, on each rank."""

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch on each rank; rows that do not fill one for every rank wait for another epoch's order."""
        return len(self.tensors[0]) // (self.rows * self.size)

    @property
    def epochs(self) -> int:
        """Passes over the data that are complete."""
        return self.position // self.per_epoch

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return self

    def __next__(self) -> tuple[Tensor, ...]:
        epoch, number = divmod(self.position, self.per_epoch)
        self.position += 1
        order = torch.randperm(len(self.tensors[0]), generator=torch.Generator().manual_seed(self.seed * 1_000_003 + epoch))
        start = (number * self.size + self.rank) * self.rows
        chosen = order[start : start + self.rows]
        return tuple(tensor[chosen] for tensor in self.tensors)

    def state_dict(self) -> dict[str, int]:
        """Where the stream is, on any number of ranks."""
        return {"position": self.position, "size": self.size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from there; on another number of ranks, at or just before it."""
        self.position = state["position"] * state["size"] // self.size
