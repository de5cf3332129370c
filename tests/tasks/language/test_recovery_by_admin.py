"""A deep Post-LN run that never improves on guessing starts again as Admin, and is an Admin run from there on."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from bathy.tasks.language.config import Config
from bathy.tasks.language.task import Language
from bathy.tasks.models import load
from bathy.train import fit, recovering
from bathy.train.log import read_log
from bathy.train.recovery import read_recoveries
from bathy.train.sections import read_sections
from bathy.train.world import World


class Guessing(Language):
    """Any Post-LN run of this task counts as guessing."""

    def chance(self) -> float:
        return math.inf if self.config.model.decoder_scheme == "admin" else 0.0


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_log(run / "metrics.jsonl") if "loss" in row]


def test_the_run_starts_again_as_admin_and_resumes_as_admin(
    language_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovering, "depth", lambda config, task: 9.0)
    train = {"steps": 20, "on_divergence": "recover", "divergence_window": 1, "recent_every": 5, "valid_every": 0}
    config = language_config(model={"decoder_scheme": "post_ln"}, train=train)
    for name, stops in {"whole": [0], "parts": [7, 0]}.items():
        for until in stops:
            fit(Guessing(config), config, tmp_path / name, World(), until=until)
    (attempt,) = read_recoveries(tmp_path / "whole")
    assert (attempt.start, attempt.settings) == (0, ["model.decoder_scheme=admin"])
    assert len(losses(tmp_path / "whole")) == 20 and losses(tmp_path / "whole") == losses(tmp_path / "parts")
    assert load(tmp_path / "whole").config.decoder_scheme == "admin"
    assert read_sections(tmp_path / "whole" / "config.toml")["model"]["decoder_scheme"] == "post_ln"
