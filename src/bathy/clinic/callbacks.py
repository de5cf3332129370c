"""The monitor inside other trainers: thin callbacks for Lightning and the Hugging Face Trainer, and a monitor for accelerate.

    Trainer(callbacks=[bathy.clinic.callbacks.lightning("run/readings.jsonl")])
    Trainer(..., callbacks=[bathy.clinic.callbacks.trainer("run/readings.jsonl")])
    with bathy.clinic.callbacks.accelerate(accelerator, model, optimizer, "run/readings.jsonl", batch=batch) as monitor: ...

All take the arguments of `bathy.Monitor` after the model and leave training bit by bit as it was. A model that is not
bathy's, also one that peft has wrapped, needs `batch=`, on which its sites are found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bathy.clinic.findings import Finding
from bathy.clinic.monitor import Monitor
from bathy.errors import require


def lightning(out: str | Path | None = None, **settings: Any) -> Any:
    """A Lightning callback; `callback.monitor` has readings and findings."""
    base = require("lightning", "dev").Callback

    class MonitorCallback(base):  # type: ignore[misc, valid-type]
        """Steps a Monitor with the trainer."""

        monitor: Monitor
        loss: Any = None
        seen: int = 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Listen from the first update on."""
            optimizer = trainer.optimizers[0] if trainer.optimizers else None
            self.seen = trainer.global_step
            self.monitor = Monitor(pl_module, out, optimizer=optimizer, **{"start": trainer.global_step} | settings)
            self.monitor.__enter__()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            """An update is over when the trainer has counted one; others were micro-batches."""
            if trainer.global_step > self.seen:
                self.seen = trainer.global_step
                self.monitor.step(outputs["loss"] if isinstance(outputs, dict) else outputs)

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """Stop listening, also after an error."""
            if stage == "fit" and hasattr(self, "monitor"):
                self.monitor.__exit__(None, None, None)

    return MonitorCallback()


def trainer(out: str | Path | None = None, **settings: Any) -> Any:
    """A callback for transformers.Trainer; `callback.monitor` has readings and findings."""
    base = require("transformers", "export").TrainerCallback

    class MonitorCallback(base):  # type: ignore[misc, valid-type]
        """Steps a Monitor with the Trainer."""

        monitor: Monitor

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Listen from the first update on."""
            optimizer = kwargs.get("optimizer")
            inner = getattr(optimizer, "optimizer", optimizer)  # what accelerate wraps
            self.monitor = Monitor(kwargs["model"], out, optimizer=inner, **{"start": state.global_step} | settings)
            self.monitor.__enter__()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """An update is over."""
            self.monitor.step(state.log_history[-1].get("loss") if state.log_history else None)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Stop listening."""
            self.monitor.__exit__(None, None, None)

    return MonitorCallback()


def accelerate(accelerator: Any, model: Any, optimizer: Any, out: str | Path | None = None, **settings: Any) -> Monitor:
    """A Monitor for a loop of accelerate's: `monitor.step(loss)` after each batch counts those that ended in an update."""

    class AccelerateMonitor(Monitor):
        """Steps with the accelerator's updates; batches that only accumulate are passed over."""

        def step(self, loss: Any = None, *, loss_scale: float | None = None) -> list[Finding]:
            """Say that a batch is over; returns the warnings of the update that it ended, if it did."""
            return super().step(loss, loss_scale=loss_scale) if accelerator.sync_gradients else []

    plain = getattr(optimizer, "optimizer", optimizer)  # what accelerate wraps
    return AccelerateMonitor(accelerator.unwrap_model(model), out, optimizer=plain, **settings)
