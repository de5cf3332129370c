"""A task is its own folder and one row: the commands find the rest."""

from pathlib import Path

import pytest

from bathy.errors import ConfigError
from bathy.tasks import TASKS, kind_of_folder, part
from bathy.tasks.verify import verify

MODULES = {
    "__init__": "",
    "settings": 'DATA_FILES = ("train.rows",)',
    "check": """
from bathy.tasks.verify.fault import Fault

def check_data(folder):
    if (folder / "train.rows").read_text() != "1 2 3":
        yield Fault(folder / "train.rows", "not three rows")
""",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the task `rows`."""
    package = tmp_path / "rows_task"
    package.mkdir()
    for name, text in MODULES.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(TASKS, "rows", "rows_task")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.json").write_text("{}", encoding="utf-8")
    (tmp_path / "data" / "train.rows").write_text("1 2 3", encoding="utf-8")
    return tmp_path / "data"


def test_its_folders_are_known_and_checked_by_its_own_rules(folder: Path) -> None:
    assert kind_of_folder(folder) == "rows"
    assert not verify(folder).faults
    (folder / "train.rows").write_text("1 2", encoding="utf-8")
    assert [fault.what for fault in verify(folder).faults] == ["not three rows"]


def test_what_it_lacks_is_one_clear_line(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the task rows has no overview"):
        part(kind_of_folder(folder), "overview")
