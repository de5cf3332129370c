"""The architecture is a list, and imports point down it."""

import ast
import subprocess
import sys
from pathlib import Path

import bathy

SOURCE = Path(bathy.__file__).parent
RANKS = [
    ["errors"], ["files", "console", "settings"], ["dropout", "norms"], ["residual"], ["schemes"], ["attention"],
    ["transformer"], ["sites"], ["folding", "profiling"], ["admin"], ["clinic"], ["nmt"], ["lab"], ["cli"], ["__main__"],
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


def test_every_public_name_exists_and_is_documented() -> None:
    assert [name for name in bathy.__all__ if not getattr(bathy, name).__doc__] == []
