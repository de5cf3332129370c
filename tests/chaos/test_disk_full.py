"""No room: one line that says so, nothing half-written in place, and the same command succeeds when there is room again."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness import FULL, TALLY, Commands, amount, contents, dice
from test_kills import DISTIL

COMMANDS = {
    "prepare": ("prepare config.toml --out {}", 400_000),
    "corpus": ("corpus toy {} --size 900 --held-out 12", 60_000),
    "train": ("train config.toml --run {}", 400_000),
    "export": ("export run --to bathy --out {}", 60_000),
    "translate": ("translate run -i raw/test.de -o {}", 900),
    "distil": (f"{DISTIL} --text-only --corpus {{}}", 60_000),
    "language": ("train language.toml --run {}", 60_000),
}
"""What is run, and bytes that would be enough for about all of it."""


@pytest.mark.parametrize("part", range(amount(1, 3)))
@pytest.mark.parametrize("name", COMMANDS if FULL else ["prepare", "translate"])
def test_a_file_that_may_not_grow_is_one_line(name: str, part: int, bathy: Commands, home: Path, language: Path) -> None:
    """The limit on a file's size strikes in the middle of a write, wherever that is."""
    random = dice("size", name, part)
    command, enough = COMMANDS[name]
    place = home / f"full_{name}"
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    for _ in range(3):
        TALLY["full disks"] += 1
        result = bathy(*command.format(place.name).split(), limits={"RLIMIT_FSIZE": random.randrange(400, max(500, enough))})
        if result.code == 0:
            break
        assert result.code == 2 and "larger than the system allows" in result.err, result.err
        assert name not in ("translate", "export") or not place.exists()
    if name == "export":
        shutil.rmtree(place, ignore_errors=True)
    assert bathy(*command.format(place.name).split()).code == 0
    if name == "prepare":
        assert contents(place, (".work", "manifest.json")) == contents(home / "data", (".work", "manifest.json"))
    if name == "translate":
        assert place.read_bytes() == (home / "test.out").read_bytes()


@pytest.fixture(scope="module")
def tiny_disk(home: Path) -> Iterator[Path]:
    """A file system of 200 kB, where that can be had."""
    place = home / "tiny"
    place.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", place], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("name", COMMANDS if FULL else ["prepare"])
def test_a_full_disk_is_one_line(name: str, bathy: Commands, home: Path, language: Path, tiny_disk: Path) -> None:
    for left in tiny_disk.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    ballast = tiny_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    os.truncate(ballast, max(0, ballast.stat().st_size - 8192))
    TALLY["full disks"] += 1
    result = bathy(*COMMANDS[name][0].format(f"tiny/{name}").split())
    if name not in ("translate",):
        assert result.code == 2 and "no space left" in result.err.lower(), result.err
