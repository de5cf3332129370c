"""The monitor inside other trainers: thin callbacks for Lightning and for the Hugging Face Trainer.

    Trainer(callbacks=[bathy.clinic.callbacks.lightning("run/readings.jsonl")])
    Trainer(..., callbacks=[bathy.clinic.callbacks.trainer("run/readings.jsonl")])

Both take the arguments of `bathy.Monitor` after the model and leave training bit by bit as it was. A model that is not
bathy's needs `batch=`, on which its sites are found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
