import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from bathy.errors import TrainingError
from bathy.lab.demo.race import race, stopped

module = import_module("bathy.lab.demo.race")
WRITES = """
import json, pathlib, sys
run = pathlib.Path(sys.argv[sys.argv.index("--run") + 1])
run.mkdir(parents=True, exist_ok=True)
(run / "metrics.jsonl").write_text(json.dumps({"step": 1, "nll": 2.0}) + "\\n")
sys.exit(3 if "bad" in run.name else 0)
"""


@pytest.fixture(autouse=True)
def _fake_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(config: Path, run: Path, changes: list[str]) -> list[str]:
        return [sys.executable, "-c", WRITES, str(config), "--run", str(run), *changes]

    monkeypatch.setattr(module, "_command", command)
    monkeypatch.setattr(module, "LOOK_EVERY", 0.02)


def test_every_run_ends_in_its_own_folder(tmp_path: Path) -> None:
    folders = race(tmp_path / "c.toml", {"a": [], "b": [], "c": []}, tmp_path, at_once=2)
    assert folders == {name: tmp_path / name for name in "abc"}
    assert all((folder / "metrics.jsonl").exists() for folder in folders.values())


def test_a_run_that_dies_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="bad ended with code 3"):
        race(tmp_path / "c.toml", {"a": [], "bad": []}, tmp_path, at_once=2)


def test_the_reason_of_an_early_stop_is_read_from_the_run(tmp_path: Path) -> None:
    rows = [{"step": 1, "nll": 2.0}, {"step": 2, "stopped": "it learned nothing"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert stopped(tmp_path) == "it learned nothing"
