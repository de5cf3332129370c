"""What a person is told when divergence detection stops a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from bathy.clinic.diagnosis import diagnose
from bathy.clinic.examination import examine
from bathy.errors import Diverged
from bathy.files import write_text
from bathy.train.config import Config
from bathy.train.state import State
from bathy.train.task import peek, to_device
from bathy.train.world import World

EXAMS = ("activations", "gradients", "step_change", "source")
"""What a diverged model is examined for."""
STOPPED = "stopped.txt"
"""The run's file that says why it was stopped, for ranks that torchrun starts again."""


def stop_diverged(config: Config, run: Path, world: World, state: State, why: str) -> NoReturn:
    """End the run with what is wrong with the model; the file tells a restart under torchrun not to repeat it."""
    message = f"stopped at update {state.step}: {why}. {_diagnosis(config, run, world, state)}"
    if world.first:
        write_text(run / STOPPED, message + "\n")
    world.wait()
    raise Diverged(message)


def refuse_repeated_failure(run: Path) -> None:
    """End at once where torchrun has restarted a run that diverged: it would do the same again."""
    path = run / STOPPED
    if path.exists() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        raise Diverged(path.read_text(encoding="utf-8", errors="replace").strip())
    if int(os.environ.get("RANK", "0")) == 0:
        path.unlink(missing_ok=True)


def _diagnosis(config: Config, run: Path, world: World, state: State) -> str:
    """The clinic's gravest finding on the coming batch, or else what helps most; the examination stays with the run."""
    if world.first and config.train.parallel == "ddp":
        batch = state.task.inputs(to_device(peek(state.batches), world.device))
        rate = state.learning_rate(config) or None
        try:
            with state.precision.autocast():
                found = examine(state.model, batch, exams=EXAMS, name="run", step=state.step, lr=rate)
            found.save(run / "examination.jsonl")
        except (
            Exception
        ) as error:  # a model or task of the user's own may fail in any way; why the run stopped must still be said
            return f"The clinic could not examine the model ({type(error).__name__}: {error}). {_advice(config, run, state)}"
        if findings := [f for f in diagnose(found.readings) if f.severity in ("serious", "warning")]:
            return f"{findings[0].title}: {findings[0].cause} {findings[0].advice}"
    return _advice(config, run, state)


def _advice(config: Config, run: Path, state: State) -> str:
    first = state.task.advice()
    return (
        f"Try {first + ', ' if first else ''}a lower optim.lr (now {config.optim.lr:g}) or a longer optim.warmup (now "
        f"{config.optim.warmup}); `bathy clinic {run}` shows where it fails; train.on_divergence = 'recover' goes back to "
        "before the failure and changes one thing"
    )
