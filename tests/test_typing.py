"""What a type checker sees of `import bathy`: a type for every public name, and an error for any other."""

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = ["bathy", "bathy.train"]
PUBLIC = [(module, name) for module in MODULES for name in dir(import_module(module))]
USE = "\n".join(
    [
        *(f"import {module}" for module in MODULES),
        *(f"reveal_type({module}.{name})" for module, name in PUBLIC),
        *(f"{module}.no_such_name" for module in MODULES),
        "bathy.Transformer('not a config')",
        "from typing import assert_type",
        "assert_type(bathy.fold(bathy.Transformer(bathy.TransformerConfig(vocab=9))), bathy.Transformer)",
    ]
)
CHECKERS = {  # mypy's settings are ours, which are strict, so that it finds its cache of `make check`
    "mypy": (["mypy"], r'note: Revealed type is "(.*)"'),
    "pyright": (["pyright", "--pythonpath", sys.executable, "--project"], r'information: Type of ".*?" is "(.*)"'),
}


@pytest.fixture(scope="module", params=CHECKERS)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """(revealed types, lines with an error) of a file that uses every public name."""
    if request.param == "pyright" and not shutil.which("node"):
        pytest.skip("pyright runs on Node.js, and there is no `node` on the PATH")
    folder = tmp_path_factory.mktemp("user")
    (folder / "use.py").write_text(USE + "\n", encoding="utf-8")
    project = {"include": ["use.py"], "extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(project), encoding="utf-8")
    command, revealed = CHECKERS[request.param]
    what = folder / ("use.py" if request.param == "mypy" else "pyrightconfig.json")
    result = subprocess.run([sys.executable, "-m", *command, what], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = USE.split("\n")
    wrong = [lines[int(number) - 1] for number in re.findall(r"use\.py:(\d+)(?::\d+)?:? (?:- )?error", result.stdout)]
    return re.findall(revealed, result.stdout), wrong


def test_every_public_name_has_a_type(report: tuple[list[str], list[str]]) -> None:
    revealed, _ = report
    assert len(revealed) == len(PUBLIC)
    vague = [
        name for (_, name), kind in zip(PUBLIC, revealed, strict=True) if re.fullmatch("Any|Unknown|Module.*|object", kind)
    ]
    assert not vague


def test_wrong_use_and_unknown_names_are_errors(report: tuple[list[str], list[str]]) -> None:
    _, wrong = report
    assert sorted(set(wrong)) == sorted(
        [*(f"{module}.no_such_name" for module in MODULES), "bathy.Transformer('not a config')"]
    )


@pytest.mark.parametrize("module", MODULES)
def test_a_type_checker_and_python_see_the_same_names(module: str) -> None:
    text = Path(str(import_module(module).__file__)).read_text(encoding="utf-8")
    found = {name: home for home, name in re.findall(r"^    from (\S+) import (\w+) as \2$", text, re.M)}
    assert found == import_module(module).EXPORTS
