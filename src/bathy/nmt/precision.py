"""Number formats of training: autocast with float32 weights, and float16's loss scale.

The scale starts at 128, doubles after 256 good updates, halves on overflow and never goes below 1/32; 20 overflows in a row at
that floor stop the run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from bathy.errors import TrainingError

START, GROW_AFTER, FLOOR, MOST_OVERFLOWS = 128.0, 256, 0.03125, 20
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Precision:
    """How one run computes: `autocast()` round the forward pass, `step` in place of the optimiser's."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self.device = name, device
        self.scaler = torch.amp.GradScaler(device.type, init_scale=START, growth_interval=GROW_AFTER, enabled=name == "float16")
        self.overflows = 0

    @property
    def dtype(self) -> torch.dtype:
        """What weights are kept in."""
        return torch.float64 if self.name == "float64" else torch.float32

    @property
    def scale(self) -> float:
        """The loss scale; 1 where there is none."""
        return self.scaler.get_scale() if self.scaler.is_enabled() else 1.0

    def autocast(self) -> AbstractContextManager[Any]:
        """Where matrix products run in the half format."""
        if self.name not in HALVES:
            return nullcontext()
        return torch.autocast(self.device.type, HALVES[self.name])

    def step(self, optimizer: Optimizer, model: nn.Module, clip: float) -> float:
        """Unscale, clip and update; returns the gradient's norm, which is not finite where the update was left out."""
        self.scaler.unscale_(optimizer)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip or torch.inf))
        before = self.scale
        self.scaler.step(optimizer)
        self.scaler.update()
        self._keep_above_floor(before)
        return norm

    def _keep_above_floor(self, before: float) -> None:
        overflow = self.scaler.is_enabled() and self.scale < before
        at_floor = overflow and before <= FLOOR
        self.overflows = self.overflows + 1 if at_floor else 0
        if overflow and self.scale < FLOOR:
            self.scaler.update(FLOOR)
        if self.overflows >= MOST_OVERFLOWS:
            raise TrainingError(
                f"float16 overflowed {MOST_OVERFLOWS} times in a row at the smallest loss scale ({FLOOR}): the model's "
                "activations or gradients do not fit; use train.precision = 'bfloat16' or a lower optim.lr"
            )

    def state_dict(self) -> dict[str, Any]:
        """The scale and its counters."""
        return {"scaler": self.scaler.state_dict(), "overflows": self.overflows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.scaler.load_state_dict(state["scaler"])
        self.overflows = state["overflows"]
