import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bathy.cli import COMMANDS, app, main


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


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], "trian"),
        (["train"], "config"),
        (["train", "x.toml", "--stpes", "3"], "--stpes"),
        (["corpus", "toy", "raw", "--size", "many"], "--size"),
        (["sweep", "x.toml", "--grace", "postgresql://me:geheim-4711@host/db"], "--grace"),
    ],
)
def test_a_wrong_option_is_one_line_too_and_repeats_no_secret(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(args)
    shown = capsys.readouterr().err
    assert left.value.code == 2 and message in shown.replace("CONFIG", "config") and "--help" in shown and "geheim" not in shown
    assert shown.startswith("error: ") and len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    "args", [["train", ""], ["sample", ""], ["score", "x", "--text", ""], ["export", "x", "--to", "bathy", "--out", ""]]
)
def test_an_empty_path_is_not_the_folder_we_are_in(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(args)
    assert left.value.code == 2 and "is empty; name a file or folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "option"),
    [
        (["data", "FOLDER", "--tokens", "512"], "--tokens"),
        (["corpus", "stdlib", "NEW", "--size", "10"], "--size"),
        (["corpus", "stdlib", "NEW", "--text", "."], "--text"),
        (["corpus", "toy", "NEW", "--pair", "train=a"], "--pair"),
        (["corpus", "folder", "NEW", "--held-out", "3", "--pair", "train=a"], "--held-out"),
        (["score", "FOLDER", "--text", "FOLDER", "-m", "bleu"], "--metric"),
        (["export", "FOLDER", "--to", "huggingface", "--type", "int8"], "--type"),
    ],
)
def test_an_option_that_has_no_effect_is_refused(
    args: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.ids.npy").touch()  # a folder of language modelling, by its files
    places = {"FOLDER": str(tmp_path / "data"), "NEW": str(tmp_path / "new")}
    with pytest.raises(SystemExit) as left:
        main([places.get(arg, arg) for arg in args])
    assert left.value.code == 2 and f"{option} has no effect on" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("raised", "code"), [(EOFError(), 2), (KeyboardInterrupt(), 130), (BrokenPipeError(32, "pipe"), 141)])
def test_how_a_command_ends_is_its_exit_code(raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bathy.console._silence", lambda: None)
    monkeypatch.setattr("bathy.cli.doctor._machine", lambda: (_ for _ in ()).throw(raised))
    with pytest.raises(SystemExit) as left:
        main(["doctor"])
    assert left.value.code == code


def test_alone_it_shows_what_one_can_do() -> None:
    shown = bathy().stdout + bathy().stderr
    assert all(command in shown for command in COMMANDS)


def test_the_version_is_printed() -> None:
    assert bathy("--version").stdout.startswith("bathy 0.")


@pytest.mark.parametrize(
    "args",
    [
        "translate run --length-penalty nan",
        "clinic run --tokens 99999999999999999999999",
        "score a -r b --samples 9223372036854775808",
    ],
)
def test_a_number_that_nothing_can_hold_is_refused_by_every_command(args: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(args.split())
    assert args.split()[-2] in capsys.readouterr().err
