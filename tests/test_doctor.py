import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bathy.cli import app
from bathy.cli import doctor as module
from bathy.cli.doctor import EXTRAS

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_the_doctor_knows_every_extra_that_commands_use() -> None:
    used = set(PROJECT["optional-dependencies"]) - {"all", "dev", "docs", "nmt"}
    assert EXTRAS.keys() == used


def test_every_package_that_is_asked_for_belongs_to_the_extra_it_names() -> None:
    """`require(module, extra)` tells people what to install; the doctor must know that module under that extra."""
    source = Path(__file__).parents[1] / "src"
    asked = {
        (module, extra)
        for path in source.rglob("*.py")
        for module, extra in re.findall(r'require\("([\w.]+)", "(\w+)"\)', path.read_text(encoding="utf-8"))
    }
    assert asked
    known = EXTRAS | {"dev": (["lightning"], "")}
    assert not [(module, extra) for module, extra in asked if module.split(".")[0] not in known.get(extra, ([], ""))[0]]


def test_a_complete_machine_is_called_complete() -> None:
    result = CliRunner().invoke(app, ["doctor", "--strict"])
    assert result.exit_code == 0, result.output
    assert "Everything is there." in result.output
    assert "disk free here" in result.output


def test_what_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.EXTRAS, "sweep", (["no_such_package"], "sweep"))
    result = CliRunner().invoke(app, ["doctor", "--strict"], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "no_such_package" in result.output
    assert "bathy[sweep]" in result.output
