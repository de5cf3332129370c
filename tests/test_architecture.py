"""The architecture is a list, and imports point down it."""

import ast
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import bathy
from bathy.cli import app
from bathy.core.residual import Residual

SOURCE = Path(bathy.__file__).parent
RANKS = [
    ["errors"], ["files", "console", "settings"], ["pages"], ["kernels"], ["core"], ["sites"], ["admin"], ["clinic"], ["train"],
    ["tasks"], ["lab"], ["cli"], ["__main__"],
]  # fmt: skip
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}


def imports() -> list[tuple[str, str]]:
    """(importing part, imported part) for every import of bathy inside bathy, also the late ones."""
    pairs = []
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "bathy":
                names = [node.module] if "." in node.module else [f"bathy.{alias.name}" for alias in node.names]
                pairs += [(part, name.split(".")[1]) for name in names]
    return [pair for pair in pairs if pair[0] != "__init__"]


def test_every_part_has_a_rank() -> None:
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")} - {"__init__"}
    assert parts <= RANK.keys()


def test_imports_point_one_way() -> None:
    assert not [(a, b) for a, b in imports() if a != b and RANK[b] >= RANK[a]]


def test_help_answers_without_importing_torch() -> None:
    code = "import atexit, os, sys; atexit.register(lambda: os._exit('torch' in sys.modules));"
    code += "from bathy.cli import main; main(['--help'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_to_translate_sample_serve_and_train_nothing_is_imported_in_vain() -> None:
    heavy = ("sympy", "torch.distributed.tensor", "torch._dynamo", "matplotlib", "transformers", "sacremoses", "optuna")
    used = (
        "tasks.translation.translate",
        "tasks.translation.serve",
        "tasks.language.sample",
        "tasks.translation.task",
        "train.loop",
    )
    code = (
        f"import sys, {', '.join(f'bathy.{name}' for name in used)}; print([name for name in {heavy} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"


def test_every_public_name_exists_and_is_documented() -> None:
    assert [name for name in dir(bathy) if not getattr(bathy, name).__doc__] == []


def test_the_engine_and_what_is_below_know_no_task() -> None:
    assert not [(a, b) for a, b in imports() if b == "tasks" and RANK[a] <= RANK["train"]]


def test_from_command_to_tensor_it_is_eight_files(toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those through which `bathy train` reaches the first residual of its first update."""
    ways: list[list[str]] = []
    forward = Residual.forward

    def record(self: Residual, x: torch.Tensor, *context: object) -> torch.Tensor:
        files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_stack(None)]
        ours = [str(path.relative_to(SOURCE)) for path in reversed(files) if SOURCE in path.parents]
        ways.append(list(dict.fromkeys(ours[ours.index("cli/train.py") :])))
        return forward(self, x, *context)

    monkeypatch.setattr(Residual, "forward", record)
    sizes = ["model.encoder_layers=1", "model.decoder_layers=1", "model.width=16", "model.ffn=16", "model.heads=2"]
    once = ["train.steps=1", "train.tokens=128", "model.encoder_scheme=post_ln", "model.decoder_scheme=post_ln"]
    (tmp_path / "config.toml").write_text(f"[data]\npath = '{toy_data}'\n", encoding="utf-8")
    sets = [word for change in sizes + once for word in ("--set", change)]
    result = CliRunner().invoke(app, ["train", str(tmp_path / "config.toml"), "--run", str(tmp_path / "run"), *sets])
    assert result.exit_code == 0, result.output
    assert ways[0][0] == "cli/train.py" and "tasks/translation/task.py" in ways[0]
    assert len([*ways[0], "core/residual.py"]) <= 8, ways[0]
