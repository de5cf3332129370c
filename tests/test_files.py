import json
from pathlib import Path

import pytest

from bathy.errors import DataError
from bathy.files import held, origin, replacing, write_json


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "value.json"
    write_json(path, {"ω": 1})
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert json.loads(path.read_text()) == {"ω": 1}
    assert [p.name for p in path.parent.iterdir()] == ["value.json"]


def test_a_folder_is_held_by_one_and_let_go_of(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(DataError, match="another process works in"), held(tmp_path):
        pass
    with held(tmp_path):
        pass


def test_an_origin_names_command_versions_and_settings() -> None:
    made = origin(seed=3)
    assert made["seed"] == 3
    assert {"python", "bathy", "torch"} <= made["versions"].keys()
    assert made["command"]


def test_an_origin_holds_no_path_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/home/me/src/bathy/__main__.py", "bench", "--data", "/home/me/text", "--out", "a/b.json"])
    assert origin()["command"] == "bathy bench --data text --out a/b.json"
