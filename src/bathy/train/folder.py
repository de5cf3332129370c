"""A run's folder: where it is, and the config it was started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bathy.errors import ConfigError
from bathy.files import write_text
from bathy.settings import settings_to_toml
from bathy.train.checkpoint import checkpoints
from bathy.train.config import Config, differences
from bathy.train.sections import read_sections

CONFIG = "config.toml"


def run_folder(config: Config, source: Path | None) -> Path:
    """Where the run goes: train.run, else runs/ and the config file's name."""
    return Path(config.train.run) if config.train.run else Path("runs") / (source.stem if source else "run")


def check_config(config: Config, run: Path, allow_changes: bool) -> None:
    """Refuse to resume under settings other than the run was started with, unless told; without a checkpoint any will do."""
    path = run / CONFIG
    if allow_changes or not path.exists() or not checkpoints(run):
        return
    values: dict[str, Any] = read_sections(path)
    if changed := differences(type(config)(**values), config):
        raise ConfigError(
            f"{run} was started with another config ({'; '.join(changed)}); "
            "choose a different train.run, or add --allow-changes to resume with the new one"
        )


def write_config(config: Config, run: Path) -> None:
    """Keep the resolved config, each setting explained, with the run."""
    write_text(run / CONFIG, settings_to_toml(config))
