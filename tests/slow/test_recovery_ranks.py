"""Two ranks recover in the same way, also when they are stopped in the middle and started again."""

import subprocess
import sys
from pathlib import Path

import pytest

from bathy.train.log import read_log
from bathy.train.recovery import read_recoveries

pytestmark = pytest.mark.slow
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--monitor-interval=0.2"]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from test_recovery import RECOVERS, Guessing, Parity, fit
from bathy.train.world import joined
task = {"batches skipped": Parity(corrupt=171), "longer warm-up": Guessing()}[sys.argv[3]]
with joined() as world:
    for until in map(int, sys.argv[4:]):
        state = fit(task, RECOVERS, sys.argv[2], world, until=until)
    weights = sum(float(parameter.double().sum()) for parameter in state.model.parameters())
    attempts = [(one.change, one.at, one.skip) for one in state.recoveries]
    open(f"{sys.argv[2]}/rank{world.rank}", "w").write(repr((weights, attempts)))
"""


@pytest.mark.parametrize("change", ["batches skipped", "longer warm-up"])
def test_two_ranks_recover_together_and_resume_exactly(change: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for name, stops in {"whole": ["0"], "parts": ["175", "0"]}.items():
        command = [
            sys.executable,
            *TORCHRUN,
            str(script),
            str(Path(__file__).parents[1] / "train"),
            str(tmp_path / name),
            change,
            *stops,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    ends = {(tmp_path / name / f"rank{rank}").read_text() for name in ("whole", "parts") for rank in (0, 1)}
    assert len(ends) == 1 and [one.change for one in read_recoveries(tmp_path / "whole")] == [change]
    first, again = (
        [row["loss"] for row in read_log(tmp_path / name / "metrics.jsonl") if "loss" in row] for name in ("whole", "parts")
    )
    assert first == again and len(first) == 240
