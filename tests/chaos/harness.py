"""What the chaos tests share: commands that can be killed, files that can be damaged, folders that can be compared."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FULL = os.environ.get("BATHY_CHAOS") == "full"
SEED = int(os.environ.get("BATHY_CHAOS_SEED") or (time.time_ns() % 1_000_000 if FULL else 1))
TALLY: Counter[str] = Counter()
"""What was done to the commands, for the summary."""
TIMING = {"seconds", "tokens_per_second", "eta", "mfu", "elapsed", "time", "flops", "wps", "ups", "sps"}


def amount(small: int, full: int) -> int:
    """How often a thing is tried: in `make test`, and in `make chaos`."""
    return full if FULL else small


def dice(*names: object) -> random.Random:
    """Random numbers that follow from the seed and the names."""
    return random.Random("/".join(map(str, (SEED, *names))))


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    args: Sequence[str]
    code: int
    out: str
    err: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def check(self) -> Result:
        """No traceback, whatever happened; a refusal is one line and exit code 2."""
        shown = f"bathy {' '.join(map(str, self.args))}\nexit code {self.code}\n{self.err[-3000:]}"
        assert "Traceback" not in self.err and "Traceback" not in self.out, shown
        assert self.killed or self.code in (0, 1, 2), shown
        if self.code == 2:
            errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
            assert len(errors) == 1 and self.err.rstrip().splitlines()[-1] == errors[0], shown
        return self


@dataclass
class Running:
    """A command while it runs."""

    pid: int
    errors: Path
    result: Result | None = None

    def says(self, text: str, seconds: float = 60) -> str:
        """The line of its messages that holds the text, once it is there; empty if the command ends without it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            said = self.errors.read_text(errors="replace").splitlines() if self.errors.exists() else []
            if found := [line for line in said if text in line]:
                return found[0]
            if not Path(f"/proc/{self.pid}").exists():
                return ""
            time.sleep(0.02)
        raise AssertionError(f"no {text!r} after {seconds} s: {said}")


class Commands:
    """Runs commands in forks of one process that has imported everything."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with (home / "zygote.err").open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("zygote.py"))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            )  # fmt: skip

    def __call__(
        self, *args: object, kill_after: float | None = None, limits: dict[str, int] | None = None, env: Any = None
    ) -> Result:
        """Run `bathy ARGS` in the home folder; SIGKILL it after so many seconds if it still runs then."""
        pid = self._start(args, limits or {}, env or {})
        timer = threading.Timer(kill_after if kill_after is not None else 300, _kill, (pid,))
        timer.start()
        try:
            return self._finish(args)
        finally:
            timer.cancel()

    @contextmanager
    def running(self, *args: object) -> Iterator[Running]:
        """A command that runs while the block does; one that still runs at its end is killed. Its result is checked."""
        command = Running(self._start(args, {}, {}), self.home / ".stderr")
        try:
            yield command
        finally:
            _kill(command.pid)
            command.result = self._finish(args)

    def _start(self, args: Sequence[object], limits: dict[str, int], env: dict[str, str]) -> int:
        files = {name: str(self.home / f".{name}") for name in ("stdout", "stderr")}
        for file in files.values():
            Path(file).unlink(missing_ok=True)
        request = {"args": [*map(str, args)], "cwd": str(self.home), "limits": limits, "env": env, **files}
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline())["pid"])

    def _finish(self, args: Sequence[object]) -> Result:
        assert self.process.stdout
        code = json.loads(self.process.stdout.readline())["code"]
        if code == -signal.SIGKILL:
            TALLY["kills"] += 1
        out, err = ((self.home / name).read_text(errors="replace") for name in (".stdout", ".stderr"))
        return Result([*map(str, args)], code, out, err).check()

    def close(self) -> None:
        self.process.communicate()


def _kill(pid: int) -> None:
    """Kill the command and whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def contents(folder: Path, but: Sequence[str] = ()) -> dict[str, str]:
    """Every file's hash by its path, without lock files and those left out; JSON without what made it and its seal."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and path.name != ".lock" and not any(part in name for part in but):
            found[name] = hashlib.sha256(_lasting(path)).hexdigest()
    return found


def _lasting(path: Path) -> bytes:
    if path.suffix == ".json":
        value = json.loads(path.read_bytes())
        if isinstance(value, dict):
            lasting = {key: part for key, part in value.items() if key not in ("origin", "seal", "inputs")}
            return json.dumps(lasting, sort_keys=True).encode()
    return path.read_bytes()


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log, without origins and without what a clock says."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMING and "second" not in k} for row in found if "origin" not in row]


WAYS = ["bit", "bit", "bit", "cut", "empty", "noise", "null", "list", "longer", "folder", "missing"]


def damage(path: Path, dice: random.Random) -> str:
    """Spoil a file in one of many ways; returns which."""
    way, whole = dice.choice(WAYS), path.read_bytes()
    place = dice.randrange(len(whole)) if whole else 0
    TALLY["damaged files"] += 1
    if way in ("folder", "missing"):
        path.unlink()
        if way == "folder":
            path.mkdir()
        return way
    flipped = whole[:place] + bytes([whole[place] ^ (1 << dice.randrange(8))]) + whole[place + 1 :] if whole else b"\x01"
    spoiled = {"bit": flipped, "cut": whole[:place], "empty": b"", "noise": dice.randbytes(max(1, len(whole) % 5000))}
    spoiled |= {"null": b"null", "list": b"[]", "longer": whole + whole[:100] + b"x"}
    path.write_bytes(spoiled[way])
    return way


@contextmanager
def damaged(path: Path, dice: random.Random) -> Iterator[str]:
    """A block in which a file is spoiled; whole again at its end, also if a test fails."""
    whole = path.read_bytes()
    try:
        yield damage(path, dice)
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        path.write_bytes(whole)
