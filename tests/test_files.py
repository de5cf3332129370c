"""Files that are whole or not there, outputs checked before work begins, and no secret in anything written."""

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any, Literal

import pytest

from bathy.errors import DataError, explain, keep_address_secret, redact, redact_words
from bathy.files import (
    check_folder,
    check_output,
    lock_folder,
    origin,
    read_json,
    replacing,
    replacing_folder,
    write_json,
    write_text,
)

DEAD = 2**22 + 1
"""A process number that Linux never gives."""


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "value.json"
    write_json(path, {"ω": 1})
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert json.loads(path.read_text()) == {"ω": 1}
    assert [p.name for p in path.parent.iterdir()] == ["value.json"]


def test_a_link_keeps_pointing_to_its_file_which_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "real" / "file", tmp_path / "link"
    target.parent.mkdir()
    for content in ("old", "new"):  # the link dangles at first
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        write_text(link, content)
        assert link.is_symlink() and target.read_text() == content


def test_a_fifo_and_a_device_are_written_to(tmp_path: Path) -> None:
    fifo, read = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    check_output(fifo, Path(os.devnull))
    write_text(fifo, "through")
    reader.join()
    write_text(Path(os.devnull), "gone")
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    write_text(link, "gone")
    assert read == ["through"] and stat.S_ISFIFO(fifo.stat().st_mode)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_what_cannot_be_written_is_said_before_work_begins_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path, message in (
        (tmp_path, "is a folder"),
        (file / "x", "a file, not a folder"),
        (tmp_path / ("n" * 300), "too long"),
    ):
        with pytest.raises(DataError, match=message):
            check_output(path)
    with pytest.raises(DataError, match="is not a folder"):
        check_folder(file)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for check in (check_output, check_folder):
        with pytest.raises(DataError, match="choose a different"):
            check(loop)
    loop.unlink()
    with pytest.raises(DataError):
        check_folder(Path("/proc/nothing"))
    check_output(tmp_path / "a" / "b" / "c", None)
    check_folder(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and file.read_text() == "x"


def test_what_a_killed_process_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    with replacing(tmp_path / "out") as temporary:
        mine = temporary
        temporary.write_text("x")
        dead = temporary.with_name(temporary.name.replace(f".{os.getpid()}.", f".{DEAD}."))
        dead.write_text("half")
        check_output(tmp_path / "out")
        assert mine.exists() and not dead.exists()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".x.host.7.tmp").mkdir()
    (tmp_path / "work" / dead.name).write_text("half")
    theirs = [tmp_path / "work" / name for name in (".y.tmp", "z.1.tmp", mine.name)]
    for path in theirs:
        path.write_text("of another program, or of a process that runs")
    with lock_folder(tmp_path):
        assert sorted(tmp_path.rglob("*.tmp")) == sorted(theirs)


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), replacing_folder(tmp_path / "a") as folder:
        (folder / "x").write_text("half")
        raise OSError("full")
    assert not list(tmp_path.iterdir())
    with replacing_folder(tmp_path / "a") as folder:
        (folder / "x").write_text("whole")
    assert (tmp_path / "a" / "x").read_text() == "whole"


def test_a_folder_is_locked_by_one_and_unlocked_at_the_end(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(DataError, match="is in use by another process"), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass


DAMAGED = {
    "null": b"null", "list": b"[]", "text": b'"x"', "nothing": b"", "half": b'{"a": ', "not UTF-8": b'{"a": "\xff"}',
    "nested": b"[" * 100_000, "digits": b'{"a": ' + b"9" * 5000 + b"}", "wrong kind": b'{"a": []}', "binary": bytes(range(256)),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGED)
def test_json_that_is_not_what_was_written_is_one_line(what: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(DAMAGED[what])
    with pytest.raises(DataError, match=r"x\.json .*; make it again") as caught:
        read_json(path, dict[str, int], "make it again")
    assert "\n" not in str(caught.value)


def test_a_changed_byte_in_a_sealed_file_is_noticed(tmp_path: Path) -> None:
    path, value = tmp_path / "x.json", {"a": 1, "b": {"ω": [1.5, "x"]}}
    write_json(path, value, seal=True)
    assert read_json(path) == value
    whole = path.read_bytes()
    for place, byte in enumerate(whole):
        path.write_bytes(whole[:place] + bytes([byte ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError):
            read_json(path, dict[Literal["a", "b"], Any])


def test_an_origin_names_command_versions_and_settings() -> None:
    made = origin(seed=3)
    assert made["seed"] == 3
    assert {"python", "bathy", "torch"} <= made["versions"].keys()
    assert made["command"]


def test_an_origin_holds_no_path_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/home/me/src/bathy/__main__.py", "bench", "--data", "/home/me/text", "--out", "a/b.json"])
    assert origin()["command"] == "bathy bench --data text --out a/b.json"


ADDRESSES = ["postgresql://me:geheim@host/db", "postgresql:/me:geheim@host", "postgresql//me:geheim@host", "p://me:ge@heim:x@h",
             "mysql+driver://me:geheim@[::1]:3306/x?ssl=1", "https://h/x?token=geheim&y=1", "h?api_key=geheim",
             "https://geheim@host/x", "redis://:geheim@h:1/0", "host=h password='ge heim' dbname=x", "PWD=geheim;UID=me",
             '{"password": "geheim"}', "password: geheim", "Authorization: Bearer geheim", "AccountKey=geheim;x=1"]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_secret_of_a_command_line_is_recorded(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["bathy", "sweep", "--storage", address, f"--storage={address}", "--api-key", "geheim", "--password=geheim"]
    monkeypatch.setattr("sys.argv", words)
    assert "heim" not in origin()["command"] and "--storage" in origin()["command"]
    assert "heim" not in redact(f"cannot use {address!r}: ({address})")
    assert redact_words(["--tokens", "4096", "train.tokens=8", "a.de"]) == ["--tokens", "4096", "train.tokens=8", "a.de"]


def test_no_secret_of_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["PGPASSWORD", "WANDB_API_KEY", "HF_TOKEN", "MY_SECRET", "MYSQL_PWD", "GH_PAT", "REDIS_AUTH", "SECRET_KEY_BASE"]
    addresses = {
        "DATABASE_URL": "postgresql://me:geheim99@h/x",
        "https_proxy": "http://me:geheim99@h",
        "DSN": "password='geheim99'",
    }
    for name in [*names, *addresses]:
        monkeypatch.setenv(name, addresses.get(name, "geheim99"))
        assert str(DataError("the server said geheim99 is wrong")) == "the server said *** is wrong"
        monkeypatch.delenv(name)
    monkeypatch.setenv("PWD", "/home/me")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("USE_TOKEN", "false")
    assert redact("/home/me is false") == "/home/me is false"


def test_an_encoded_password_is_kept_secret_decoded_too() -> None:
    keep_address_secret("mssql+pyodbc:///?odbc_connect=UID%3Dme%3BPWD%3Dge-heim-1")
    keep_address_secret("postgresql://me:ge%2Fheim%402@host/db")
    assert redact("near ge-heim-1, ge/heim@2 and ge%2Fheim%402") == "near ***, *** and ***"


@pytest.mark.parametrize("text", ["train.tokens=8", "unknown token: <s>", "the basic idea", "runs/a:b", "a@b.toml", "password"])
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert redact(text) == text


def test_what_the_system_refuses_is_explained() -> None:
    assert explain(OSError(28, "No space left on device", "x")).startswith("x: no space left on the disk; free some")
    assert explain(OSError(28, "No space left on device")).startswith("no space left")
    assert explain(EOFError(), "x.gz") == "x.gz ends too early; it is damaged or incomplete"
