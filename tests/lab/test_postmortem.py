"""The cause of a failed run is found by replaying it, and a healthy run has none."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from test_recovery import Parity, config

from bathy.clinic.examination import Examination
from bathy.clinic.readings import Reading
from bathy.errors import Diverged
from bathy.lab.postmortem.failure import find_failure, jump
from bathy.lab.postmortem.page import finding_of, into_clinic, write_page
from bathy.lab.postmortem.run import Postmortem, postmortem
from bathy.train import Config, fit
from bathy.train.log import read_log
from bathy.train.sections import read_sections
from bathy.train.world import World


def read(path: Path, changes: Sequence[str]) -> Config:
    return Config(**read_sections(path, changes))  # type: ignore[arg-type]


def examined(run: Path, corrupt: int = -1) -> Postmortem:
    return postmortem(run, 10, read, lambda _: Parity(corrupt))


@pytest.fixture(scope="module")
def corrupt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a corrupt batch, looked at twice: time runs out at first."""
    run = tmp_path_factory.mktemp("corrupt")
    fit(Parity(171), config(steps=220, on_divergence="continue"), run, World())
    first = postmortem(run, 0.0, read, lambda _: Parity(171))
    assert not first.replays and "the same command again resumes" in first.left_out["control"]
    return run


def test_one_corrupt_batch_is_named(corrupt: Path) -> None:
    result = examined(corrupt, corrupt=171)
    assert result.failure and result.failure.kind == "rise" and 160 <= result.failure.onset <= 175
    assert result.verdict.cause == "batches skipped" and "update 171" in result.verdict.text
    assert result.replays["control"].failed and result.replays["control"].start == 160
    assert not result.replays["batches skipped"].failed and result.replays["batches skipped"].parted == 171
    page = write_page(corrupt, result).read_text()
    assert "bad batch" in page and "http" not in page.replace("http://www.w3.org", "").split("<script")[0]


def test_the_clinics_report_of_the_run_shows_the_cause(corrupt: Path) -> None:
    examined(corrupt, corrupt=171)
    assert into_clinic(corrupt) is None  # not examined yet
    Examination([Reading("loss", 0.7, step=160)], {"without": ["step"]}).save(corrupt / "clinic" / "readings.jsonl")
    report = into_clinic(corrupt)
    (finding,) = finding_of(corrupt, "corrupt")
    assert report and finding.title in report.read_text() and "update 171" in finding.title
    assert any("batches skipped" in str(each) and "it trains" in str(each) for each in finding.evidence)
    both = Examination([], known=(finding,)) + Examination([Reading("loss", 0.7)])
    assert both.findings[0] is finding and Examination.load(corrupt / "clinic" / "readings.jsonl").without == ("step",)


def test_the_unchanged_replay_is_the_run(corrupt: Path) -> None:
    examined(corrupt, corrupt=171)
    first, again = (
        {row["step"]: row["nll"] for row in read_log(folder / "metrics.jsonl") if "nll" in row and row["step"] > 160}
        for folder in (corrupt, corrupt / "postmortem" / "control")
    )
    assert first == again


def test_a_rate_that_was_raised_is_named(tmp_path: Path) -> None:
    fit(Parity(), config(steps=160), tmp_path, World())
    faster = config(steps=220)
    faster = faster.model_copy(update={"optim": faster.optim.model_copy(update={"lr": 1.0})})
    with suppress(Diverged):
        fit(Parity(), faster, tmp_path, World(), allow_changes=True)
    result = examined(tmp_path)
    assert result.failure and result.replays["control"].failed
    assert result.verdict.cause == "rate not raised" and "from 0.05 to 1 at update 161" in result.verdict.text, result
    assert "batches skipped" not in result.verdict.prevents


def test_a_healthy_run_has_no_cause(tmp_path: Path) -> None:
    fit(Parity(), config(steps=120), tmp_path, World())
    result = examined(tmp_path)
    assert result.failure is None and not result.replays and not result.verdict.cause


ROW = dict[str, Any]


def rows(values: Sequence[float | None]) -> list[ROW]:
    return [{"step": step, "nll": value} for step, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("values", "kind", "onset"),
    [
        ([5 - i / 50 for i in range(100)], "", 0),
        ([5 - i / 50 for i in range(100)] + [8.0] * 30, "rise", 100),
        ([5.0] * 100, "guessing", 0),
        ([5 - i / 50 for i in range(100)] + [None] * 20, "rise", 100),
    ],
)
def test_a_curve_tells_how_and_since_when_it_failed(values: list[float | None], kind: str, onset: int) -> None:
    found = find_failure(rows(values), chance=5.0)
    assert (found.kind if found else "") == kind
    assert found is None or abs(found.onset - onset) <= 10


def test_the_batch_that_stands_out_is_found() -> None:
    values: list[float | None] = [3 + 0.1 * (i % 3) for i in range(100)]
    values[70] = 9.0
    step, deviations = jump(rows(values), 50, 100)
    assert step == 71 and deviations > 20
