"""Sweeps by several processes: over a real PostgreSQL with one of two workers killed, and over SQLite on one machine."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bathy.lab.sweep import Grid, Sweep, connect
from bathy.tasks import read_config
from bathy.tasks.translation.corpora.toy import write_toy
from bathy.tasks.translation.prepare import prepare

pytestmark = pytest.mark.slow

CONFIG = """
[data]
path = "{data}"
[model]
encoder_layers = 1
decoder_layers = 1
width = 16
ffn = 16
heads = 2
[train]
tokens = 256
log_every = 500
valid_every = 0
save_every = 100
keep_last = 1000
"""
PATIENCE = 400
"""Seconds to wait on a machine that is busy with other things."""
GRID = ["train.steps=1200,30", "optim.lr=1e-3,2e-3"]
"""The first two points are long, the others short."""


def program(name: str) -> str:
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, homes), os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"PostgreSQL's {name} is not installed")
    return found


def unprivileged() -> list[str]:
    """What a command starts with so that it does not run as root, which PostgreSQL refuses."""
    if os.getuid():
        return []
    if subprocess.run(["id", "postgres"], capture_output=True, check=False).returncode:
        pytest.skip("as root, PostgreSQL needs the user postgres")
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a fresh server that listens on a socket in its own folder only."""
    initdb, server, prefix = program("initdb"), program("postgres"), unprivileged()
    home = Path(tempfile.mkdtemp(prefix="bathy-pg-"))
    if prefix:
        shutil.chown(home, "postgres")
    settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={home}", "-c", "fsync=off"]
    running = None
    try:
        subprocess.run(
            [*prefix, initdb, "-D", home / "data", "-U", "bathy", "-A", "trust", "-N"], check=True, capture_output=True
        )
        running = subprocess.Popen([*prefix, server, "-D", home / "data", *settings], stderr=subprocess.DEVNULL)
        while not (home / ".s.PGSQL.5432").exists():
            assert running.poll() is None, "PostgreSQL did not start"
            time.sleep(0.05)
        yield f"postgresql://bathy@/postgres?host={home}"
    finally:
        if running is not None:
            running.send_signal(signal.SIGINT)  # fast shutdown: PostgreSQL does not wait for its clients
            running.wait(timeout=20)
        shutil.rmtree(home)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder / "raw", size=200, held_out=10)
    prepare(read_config(None, [f"data.path='{folder / 'data'}'", f"prepare.raw='{folder / 'raw'}'", "data.vocab=400"]))
    path = folder / "config.toml"
    path.write_text(CONFIG.format(data=folder / "data"))
    return path


def started(workers: ExitStack, command: list[Any]) -> subprocess.Popen[str]:
    """A worker that does not outlive the test."""
    process = workers.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    workers.callback(process.kill)
    return process


def wait_for(path: Path, *writers: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline and all(writer.poll() is None for writer in writers), f"{path} was not written"
        time.sleep(0.02)


def saved(sweep: Sweep) -> dict[Path, int]:
    """Every checkpoint of the sweep, with the moment at which it was written."""
    return {path: path.stat().st_mtime_ns for path in sweep.out.glob("*/checkpoints/step_*/meta.json")}


def test_a_killed_workers_run_is_taken_over_and_resumed(postgres: str, config: Path, tmp_path: Path) -> None:
    sweep = Sweep(Grid.parse(GRID), tmp_path / "sweep", postgres)
    axes = [text for axis in GRID for text in ("--grid", axis)]
    command = [sys.executable, "-m", "bathy", "sweep", config, *axes, "--out", sweep.out, "--storage", postgres]
    command += ["--heartbeat", "1", "--grace", "3"]

    with ExitStack() as workers:
        doomed, other = started(workers, command), started(workers, command)
        for point in sweep.grid.points[:2]:  # one of them is the doomed worker's
            wait_for(sweep.folder(point) / "checkpoints/step_00000100/meta.json", doomed, other)
        doomed.kill()
        doomed.wait()
        before = saved(sweep)
        printed, _ = other.communicate(timeout=PATIENCE)

    assert other.returncode == 0 and "4 of 4 trained" in printed and "optuna-dashboard" in printed
    study = connect(sweep)
    (dead,) = [trial for trial in study.get_trials() if trial.state.name == "FAIL"]
    its = {path: moment for path, moment in before.items() if path.parents[2].name == dead.user_attrs["folder"]}
    assert its and its.items() <= saved(sweep).items()  # resumed: what was there was not made again
    assert (sweep.out / dead.user_attrs["folder"] / "checkpoints/step_00001200").exists()
    states = [trial.state.name for trial in study.get_trials() if "skipped" not in trial.user_attrs]
    assert sorted(states) == ["COMPLETE"] * 4 + ["FAIL"]
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]


def test_two_local_workers_share_a_grid(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bathy", "sweep", str(config), "--grid", "optim.lr=1e-3,2e-3", "--out", str(tmp_path)]
    result = subprocess.run(
        [*command, "--workers", "2", "--set", "train.steps=10"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0 and "2 of 2 trained" in result.stdout
    assert {path.parent.name for path in tmp_path.glob("*/outcome.json")} == {"lr=1e-3", "lr=2e-3"}
    assert (tmp_path / "heat_map.png").stat().st_size and (tmp_path / "results.csv").read_text().count("trained") == 2
