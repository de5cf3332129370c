"""Train a config's task, in this process."""

from pathlib import Path
from typing import Any

from bathy.tasks import make_task
from bathy.train.loop import fit
from bathy.train.state import State
from bathy.train.world import World


def train(config: Any, run: Path, world: World | None = None, allow_changes: bool = False) -> State:
    return fit(make_task(config), config, run, world or World(), allow_changes)
