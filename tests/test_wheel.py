"""The wheel holds everything, and says what is missing: what `make wheel` tries for real, with imports blocked instead."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from try_wheel import ROOT, TRIES, build

from bathy.cli.doctor import EXTRAS

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
import bathy
assert bathy.__file__.startswith({place!r}), bathy.__file__
import os
from bathy.cli import main
for line in {lines!r}:
    try:
        main(line.split())
    except SystemExit as end:
        print("code", end.code, flush=True)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(build(folder)) as wheel:
        wheel.extractall(folder / "place")
    return folder / "place"


def test_the_wheel_holds_every_file_and_every_extra(place: Path) -> None:
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/bathy").rglob("*") if path.is_file()}
    wanted = {name for name in source if "__pycache__" not in name}
    assert wanted <= {str(path.relative_to(place)) for path in place.rglob("*")}
    metadata = next(place.glob("bathy-*.dist-info/METADATA")).read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(re.findall(r"^Provides-Extra: (\S+)", metadata, re.M)) == set(project["optional-dependencies"])
    assert f"Version: {project['version']}\n" in metadata


def test_every_extra_is_tried() -> None:
    assert TRIES.keys() - {"core", "nmt", "all"} == EXTRAS.keys() - {"translation"}


def test_without_extras_their_commands_name_them_and_the_others_work(place: Path, tmp_path: Path) -> None:
    blocked = {module for modules, _ in EXTRAS.values() for module in modules} - {"jinja2"}  # torch brings it
    works, refused = TRIES["core"]
    works = [line for line in works if line != "doctor"]  # it looks for modules, where blocking is an error
    (tmp_path / "demo.toml").write_bytes((ROOT / "src/bathy/lab/demo/demo.toml").read_bytes())
    code = BLOCKED.format(blocked=blocked, place=str(place), lines=[*works, *refused])
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(place), "PATH": ""}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    codes = [int(code) for code in re.findall(r"^code (\d+)$", result.stdout, re.M)]
    assert codes == [0] * len(works) + [2] * len(refused), (result.stdout, result.stderr)
    assert len(re.findall(r"pip install 'bathy\[\w+\]'", result.stderr)) >= len(refused), result.stderr
