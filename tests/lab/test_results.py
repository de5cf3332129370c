"""The published results: page, verdicts and numbers say the same."""

import json
from pathlib import Path

import pytest

from bathy.lab.reproduce.folder import judged, plain, read_numbers
from bathy.lab.reproduce.publish import BLOCK, refreshed

PAGE = Path(__file__).parents[2] / "docs/results.md"
FOLDERS = sorted(path.parent for path in PAGE.with_suffix("").glob("*/*/numbers.json"))


def test_the_page_follows_from_the_committed_files() -> None:
    assert refreshed(PAGE) == PAGE.read_text(encoding="utf-8")


def test_every_committed_result_is_on_the_page() -> None:
    shown = [match[2] for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted(f"{folder.parent.name}/{folder.name}" for folder in FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_verdicts_follow_from_the_numbers(folder: Path) -> None:
    numbers, origin = read_numbers(folder)
    assert json.loads((folder / "verdicts.json").read_text()) == plain(
        [verdict.row() for verdict in judged(folder.name, numbers)]
    )
    assert origin["command"].startswith(f"bathy reproduce {folder.name} --scale {folder.parent.name}")
    assert (folder / "configs/scale.json").exists()
