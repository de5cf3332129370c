"""The training objective where none is given, and the batch with a wrong source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bathy.errors import BatchError
from bathy.sites.batch import Batch, map_tensors, tensors_in

Loss = Callable[[Any, Batch], Tensor]
"""The training objective: from the model's output and the batch to one number."""


def loss_for(output: Any, batch: Batch) -> Loss:
    """The objective where none was given: the output's own, else the next token's where logits fit, else a projection."""
    return default_loss if own_loss(output) is not None or _next_token(output, batch) is not None else projection_loss


def default_loss(output: Any, batch: Batch) -> Tensor:
    """The output's own `loss` where it has one; else cross-entropy of the logits against the batch's last token ids.

    Those are what a decoder reads, so position t is asked for token t + 1; id 0 is padding and is left out.
    """
    own = own_loss(output)
    if own is not None:
        return own
    found = _next_token(output, batch)
    if found is None:
        raise BatchError("the model's output gives no loss by itself; pass loss=function of (output, batch)")
    logits, tokens = found
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), ignore_index=0)


def own_loss(output: Any) -> Tensor | None:
    """The loss that a model gives itself: its output when that is one number, else what is called `loss` in it."""
    own = output if isinstance(output, Tensor) else output.get("loss") if isinstance(output, Mapping) else None
    own = getattr(output, "loss", None) if own is None else own
    return own if isinstance(own, Tensor) and own.dim() == 0 and own.is_floating_point() else None


def _next_token(output: Any, batch: Batch) -> tuple[Tensor, Tensor] | None:
    """Logits (b t v) and the token ids (b t) that they are over; nothing where the two do not fit."""
    logits = logits_of(output)
    tokens = [part for part in parts(batch) if isinstance(part, Tensor) and not part.is_floating_point() and part.dim() == 2]
    tokens = [part for part in tokens if part.dtype != torch.bool]
    if logits is None or not tokens or logits.dim() != 3 or logits.shape[:2] != tokens[-1].shape:
        return None
    return (logits, tokens[-1]) if int(tokens[-1].max()) < logits.shape[-1] else None


def logits_of(output: Any) -> Tensor | None:
    """The logits of a model's output, if it has any."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    return found if isinstance(found, Tensor) else None


def projection_loss(output: Any, batch: Batch) -> Tensor:
    """A seeded random projection of the output: (1/n) Σ ⟨y, r⟩/√D over its n vectors y, for a model that gives no loss."""
    y = first_tensor(output).float()
    y = y if y.dim() else y[None]
    direction = torch.randn(y.shape[-1], generator=torch.Generator().manual_seed(0)).to(y.device)
    return (y @ direction).mean() / y.shape[-1] ** 0.5


def first_tensor(output: Any) -> Tensor:
    """The first floating-point tensor of a model's output."""
    found = [part for _, part in tensors_in(output) if part.is_floating_point()]
    if not found:
        raise BatchError("the model's output has no floating-point tensor; pass loss=function of (output, batch)")
    return found[0]


LOSSES: dict[Loss, str] = {
    default_loss: "the output's own, else cross-entropy of the next token",
    projection_loss: "a seeded random projection of the output",
}
"""What an objective that was not given is called."""


def parts(batch: Batch) -> list[Any]:
    """The values of a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    return list(batch.values()) if isinstance(batch, Mapping) else list(batch)


def roll_source(batch: Batch) -> Batch | None:
    """The batch with each sentence's source replaced by its neighbour's; nothing where there is no source, or one sentence.

    In a tuple the source is the first entry of several; in a dict everything but what is named for the decoder or target.
    """

    def rolled(x: Tensor) -> Tensor:
        return x.roll(1, 0) if x.dim() else x

    if isinstance(batch, Mapping):
        own = {key: value for key, value in batch.items() if not key.startswith(("decoder", "target", "tgt", "labels"))}
        found = len(own) < len(batch)
        batch = {**batch, **map_tensors(own, rolled)}  # type: ignore[dict-item]
        return batch if found and _sentences(batch) > 1 else None
    first, *others = parts(batch)
    return (rolled(first), *others) if others and _sentences(batch) > 1 else None


def _sentences(batch: Batch) -> int:
    """Sentences in the batch."""
    return max(len(part) for part in parts(batch) if isinstance(part, Tensor) and part.dim())
