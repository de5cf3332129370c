"""What README, docs, configs and help tell people to type works."""

import inspect
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from test_examples import ARGUMENTS
from typer.testing import CliRunner

from bathy.cli import COMMANDS, app

ROOT = Path(__file__).parents[1]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
FIRST = ["README", "data", "training", "language"]
"""Pages that begin with nothing. The others find what the page on training leaves behind."""

RULES = {
    "corpus toy": "--size 400 --held-out 4 --workers 1",
    "corpus stdlib": "",
    "corpus": None,
    "prepare configs/lm_stdlib_24l.toml": "--set prepare.vocabulary=byte",
    "prepare": "--set data.vocab=300 --set prepare.workers=1",
    "data": "",
    "train configs/demo.toml": "--set train.steps=2 --set model.encoder_layers=1 --set model.width=32 --set optim.warmup=1",
    "train configs/lm_stdlib_24l.toml": "--set train.steps=2 --set model.decoder_layers=1 --set model.width=12 "
    "--set model.ffn=8 --set optim.warmup=1 --set train.tokens=8192 --set task.sample=4",
    "train": "--plan --gpus 1",
    "translate": "--max-length 4",
    "sample": "--length 4",
    "score runs/lm_stdlib_24l": "",
    "score": "--samples 10",
    "export runs/lm_stdlib_24l": "",
    "export": "--beam 2",
    "serve": None,
    "watch": None,
    "distil": "--set train.steps=2 --set model.encoder_layers=1 --set model.width=32 --set model.ffn=32 --set optim.warmup=1 "
    "--set distil.workers=1 --set distil.beam=1 --set distil.max_ratio=0 --set data.vocab=150 --set train.tokens=512",
    "clinic --model": None,
    "clinic": "--tokens 64",
    "reproduce --list": "",
    "reproduce": None,
    "sweep": None,
    "predict": None,
    "audit": None,
    "ladder": None,
    "postmortem": None,
    "bench": None,
    "demo": None,
    "verify": "",
    "doctor": "",
}
"""How a command begins, and what makes it quick. None: it takes hours, or something of the reader's own, and is only read."""

SHALLOW = ("Transformer(64, 4, 12, 12, 256", "Transformer(64, 4, 2, 2, 256")
"""The deep model of the pages, and one of the same kind that is quick."""

PROGRAM = re.compile(r"(bathy|make|torchrun|python3?|pip|git|cd|echo|optuna-dashboard|tensorboard) ")


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The Python and the commands of a page, in order."""
    for kind, fenced, indented in re.findall(r"^```(\w+)\n(.*?)^```$|((?:^ {4}[^\n]+\n)+)", text, re.M | re.S):
        if kind == "python":
            yield kind, fenced
        elif kind in ("sh", ""):
            lines = re.sub(r"\\\n\s*", "", fenced or indented).split("\n")
            yield from ((kind, line.strip()) for line in lines if kind or PROGRAM.match(line.strip()))


def mentions(text: str) -> list[str]:
    """The commands inside a page's sentences. A command's bare name is no more than a name."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    found = [command.replace("\n", " ") for command in re.findall(r"`([^`]+)`", prose) if PROGRAM.match(command)]
    return [command for command in found if command.removeprefix("bathy ") not in COMMANDS]


def read(args: list[str]) -> None:
    """The command line's own parser takes the arguments, and what they name exists."""
    from bathy.lab.bench import load
    from bathy.lab.reproduce import find_item
    from bathy.lab.reproduce.scale import find_scale
    from bathy.lab.sweep import Grid
    from bathy.tasks import read_config

    known = {"what": load, "items": lambda items: [*map(find_item, items)], "scale": find_scale, "grid": Grid.parse}
    group: Any = typer.main.get_command(app)
    values = group.commands[args[0]].make_context(args[0], args[1:]).params
    for name in known.keys() & values.keys():
        known[name](values[name])
    if values.get("config") not in (None, Path("CONFIG")):
        read_config(ROOT / values["config"], values["set_"] or [])


def run(args: list[str], given: str = "") -> None:
    result = CliRunner().invoke(app, args, input=given)
    assert result.exit_code == 0, (args, result.output, result.exception)


def follow(command: str, really: bool) -> None:
    """Run a command, or read it. One that no rule knows fails."""
    match shlex.split(command, comments=True):
        case []:
            pass
        case ["make", target, *settings] if all(re.fullmatch(r"[A-Z_]+=\w+", setting) for setting in settings):
            assert re.search(rf"^{target}:.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M), command
        case ["python", script] if script.startswith("tests/"):
            assert (ROOT / script).is_file(), command
        case ["python", script, *args]:
            assert {arg for arg in args if arg[0] == "-"} <= {*ARGUMENTS[script.removeprefix("examples/")]}, command
        case ["torchrun", *args]:
            from torch.distributed.run import get_args_parser

            parsed = get_args_parser().parse_args(args)
            follow(shlex.join([parsed.training_script, *parsed.training_script_args]), really)
        case ["pip", "install", what]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
            assert what.removeprefix(".[").removesuffix("]") in extras, command
        case ["echo", line, "|", "bathy", "translate", *args]:
            run(["translate", *args], line)
        case ["bathy", "--help" | "--version"] | ["optuna-dashboard", _]:
            pass
        case ["bathy", *args]:
            starts = [start for start in RULES if f"{' '.join(args)} ".startswith(f"{start} ")]
            assert starts, f"no rule for {command}"
            cut = RULES[starts[0]]
            read(args) if cut is None or not really else run([*args, *cut.split()])
        case _:
            raise AssertionError(f"no rule for {command}")


def place(folder: Path) -> Path:
    """An empty folder with the configs, as a checkout has them."""
    folder.mkdir()
    (folder / "configs").symlink_to(ROOT / "configs")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place(tmp_path_factory.mktemp("trained") / "place"))
        for _, command in blocks(PAGES["training"]):
            follow(command, really=True)
        yield Path.cwd()


@pytest.mark.parametrize("page", [page for page in PAGES if [*blocks(PAGES[page])]])
def test_what_a_page_says_to_run_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    here = tmp_path / "place"
    monkeypatch.chdir(
        place(here) if page in FIRST else shutil.copytree(request.getfixturevalue("trained"), here, symlinks=True)
    )
    scope: dict[str, Any] = {}
    for kind, text in blocks(PAGES[page]):
        exec(text.replace(*SHALLOW), scope) if kind == "python" else follow(text, really=True)


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING"])
def test_commands_inside_sentences_are_commands(page: str) -> None:
    text = PAGES.get(page) or (ROOT / f"{page}.md").read_text(encoding="utf-8")
    for command in mentions(text) + [command for kind, command in blocks(text) if page == "CONTRIBUTING" and kind != "python"]:
        follow(command, really=False)


def test_the_examples_of_configs_and_help_are_commands() -> None:
    help_ = [inspect.getdoc(getattr(import_module(module), name)) or "" for name, module in COMMANDS.items()]
    configs = [path.read_text(encoding="utf-8") for path in (ROOT / "configs").glob("*.toml")]
    lines = re.findall(r"^(?:# |Examples?: )?((?:bathy|torchrun) .*?)(?:   .*)?$", "\n".join(help_ + configs), re.M)
    assert len(lines) > len(COMMANDS)
    for command in " && ".join(lines).split(" && "):
        follow(command, really=False)
