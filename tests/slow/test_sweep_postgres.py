"""A sweep over a real PostgreSQL with two worker processes, one of them killed: its trial is taken over and resumed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bathy.lab.sweep import Grid, Sweep, connect, folder_name

pytestmark = pytest.mark.slow

WORKER = """
import sys, time
from pathlib import Path
from bathy.lab.runs import Outcome
from bathy.lab.sweep import Grid, Sweep, work

def run(point, folder):
    # One unit of work at a time, each on disk before the next: what a resumable run is. The first point is long.
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "steps"
    with (folder / "workers").open("a") as log:
        log.write(sys.argv[3] + "\\n")
    long = point["optim.lr"] == "1e-4"
    for step in range(len(file.read_text()) if file.exists() else 0, 40 if long else 4):
        file.open("a").write(".")
        time.sleep(0.1)
    return Outcome(loss=float(point["optim.beta2"]), ppl=1.0, stopped=point["optim.lr"] == "3e-4", why="diverged at step 4")

if __name__ == "__main__":
    grid = Grid.parse(["optim.lr=1e-4,2e-4,3e-4", "optim.beta2=0.99,0.999"])
    work(Sweep(grid, Path(sys.argv[1]), sys.argv[2], heartbeat=1, grace=2), run, poll=0.2)
"""


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


def wait_for(path: Path, characters: int) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or len(path.read_text()) < characters:
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.02)


def test_a_killed_workers_trial_is_taken_over_and_resumed(postgres: str, tmp_path: Path) -> None:
    grid = Grid.parse(["optim.lr=1e-4,2e-4,3e-4", "optim.beta2=0.99,0.999"])
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    out = tmp_path / "out"
    first, second = folder_name(grid.points[0]), folder_name(grid.points[1])

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, script, out, postgres, name])

    doomed = start("doomed")
    wait_for(out / first / "steps", 5)
    other = start("other")
    wait_for(out / second / "steps", 1)
    doomed.kill()
    doomed.wait()
    done = len((out / first / "steps").read_text())
    assert other.wait(timeout=60) == 0

    assert (out / first / "workers").read_text().split() == ["doomed", "other"]
    assert done < 40 and len((out / first / "steps").read_text()) == 40  # resumed, not begun again
    study = connect(Sweep(grid, out, postgres))
    states = [trial.state.name for trial in study.get_trials() if "skipped" not in trial.user_attrs]
    assert sorted(states) == ["COMPLETE"] * 4 + ["FAIL"] + ["PRUNED"] * 2
    assert all(len((out / folder_name(point) / "workers").read_text().split()) == 1 for point in grid.points[1:])
