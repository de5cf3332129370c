"""Every example runs, on small sizes."""

import ast
import json
import runpy
import sys
from pathlib import Path
from typing import Any

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


def run_cell(source: str, scope: dict[str, Any]) -> Any:
    """Run a notebook's cell as a notebook would; returns what its last expression shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), scope)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), scope) if isinstance(last, ast.Expr) else None


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_the_notebook_runs_and_shows_what_it_names(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert notebook["nbformat"] == 4 and not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    scope: dict[str, Any] = {"__name__": "__main__"}
    shown = [
        value
        for cell in cells
        if (value := run_cell("".join(cell["source"]).replace("layers = 12", "layers = 2"), scope)) is not None
    ]
    assert {type(value).__name__ for value in shown} == {"Sites", "Audit", "Examination", "Forecast", "Profile"}
    assert all("<table>" in value._repr_html_() for value in shown)
