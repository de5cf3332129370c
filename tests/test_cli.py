import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bathy.cli import COMMANDS, app


def bathy(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bathy", *args], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "bathy " + command in result.output.split("Example", 1)[1]


def test_a_users_mistake_is_one_line_and_exit_code_two() -> None:
    result = bathy("bench", "admn")
    assert result.returncode == 2
    assert result.stderr.startswith("error: there is no benchmark 'admn'. Did you mean admin? Known: ")
    assert len(result.stderr.splitlines()) == 1


def test_alone_it_shows_what_one_can_do() -> None:
    shown = bathy().stdout + bathy().stderr
    assert all(command in shown for command in COMMANDS)


def test_the_version_is_printed() -> None:
    assert bathy("--version").stdout.startswith("bathy 0.")
