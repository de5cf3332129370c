"""Every example runs, on small sizes."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
ARGUMENTS: dict[str, list[str]] = {
    "bert.py": ["--layers", "2", "--steps", "20", "--seeds", "1", "--figure", "curves.svg"],
    "hf_trainer.py": ["--layers", "2", "--steps", "2", "--out", "bert"],
    "lightning_bert.py": ["--layers", "2", "--steps", "2"],
    "own_model.py": [],
    "own_task.py": ["4"],
    "predict.py": [],
}
PARTS = {"zen.py"}
"""Modules that the examples share."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [name, *ARGUMENTS[name]])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - PARTS == ARGUMENTS.keys()
