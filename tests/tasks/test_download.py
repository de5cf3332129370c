"""Downloading from a server that misbehaves, and laying out what came."""

import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bathy.errors import ConfigError, DataError
from bathy.tasks.download import Remote, fetch, unpack
from bathy.tasks.translation.corpora.build import build, own
from bathy.tasks.translation.corpora.recipes import RECIPES, Part, Recipe, recipe

HEADERS = {"wordy": "many", "negative": "-5", "digits": "9" * 5000, "empty": "", "float": "1.5", "latin": "²"}
"""Content-Length as no server should send it."""
BODY = bytes(range(256)) * 400


class Server(ThreadingHTTPServer):
    """Serves `files`; by the first part of the path it truncates, stalls, ignores ranges or forgets the length."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"body": BODY}
        self.ranges: list[str] = []
        self.broken = 0

    def remote(self, path: str, **known: object) -> Remote:
        return Remote(f"http://127.0.0.1:{self.server_port}/{path}", **known)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        way, _, name = self.path.strip("/").rpartition("/")
        body = self.server.files.get(name)
        if body is None:
            self.send_error(404)
            return
        asked = self.headers.get("Range", "")
        self.server.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and way != "whole" else 0
        self.send_response(206 if start else 200)
        if way in HEADERS:
            self.send_header("Content-Length", HEADERS[way])
        elif way != "lengthless":
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        rest = body[start:]
        if way == "truncates" and self.server.broken < 3:
            self.server.broken += 1
            rest = rest[: len(rest) // 2]
        if way == "stalls" and not asked:
            self.wfile.write(rest[:1000])
            time.sleep(0.6)
            return
        if way == "dead":
            return
        self.wfile.write(rest)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("way", ["fine", "truncates", "stalls", "lengthless", "whole", "wordy", "float", "empty", "latin"])
def test_a_file_arrives_whole_whatever_the_server_does(server: Server, tmp_path: Path, way: str) -> None:
    assert fetch(server.remote(f"{way}/body"), tmp_path, patience=0.2).read_bytes() == BODY
    if way in ("truncates", "stalls"):
        assert any(server.ranges), "the broken download went on where it stopped"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("way", HEADERS)
def test_a_broken_header_is_no_traceback(server: Server, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bathy.tasks.download.ATTEMPTS", 1)
    try:
        assert fetch(server.remote(f"{way}/body"), tmp_path, patience=0.2).read_bytes() == BODY
    except DataError as error:
        assert "\n" not in str(error) and "body: " in str(error)


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b'{"x": 3}', b"\xff", b'{"x": {"size": "many"}}'])
def test_a_damaged_checksum_file_is_one_line(server: Server, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checksums.json").write_bytes(content)
    with pytest.raises(DataError, match=r"checksums\.json .*; remove it, and the files are recorded anew") as caught:
        fetch(server.remote("fine/body"), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_a_file_that_is_not_what_its_ending_says_is_one_line(tmp_path: Path, ending: str) -> None:
    for name in ("a.de", "a.en"):
        (tmp_path / f"{name}{ending}").write_bytes(b"no archive at all\n")
    with pytest.raises(DataError, match=r"a\.(de|en)\.\w+ is damaged or not what its ending says"):
        own(tmp_path / "out", "de", "en", [f"train={tmp_path}/a"])
    assert not list((tmp_path / "out").glob("*.??"))


def test_a_killed_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".body.part").write_bytes(BODY[:5000])
    assert fetch(server.remote("fine/body"), tmp_path).read_bytes() == BODY
    assert server.ranges == ["bytes=5000-"]


def test_a_dead_server_is_given_up_with_what_came_kept(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bathy.tasks.download.ATTEMPTS", 2)
    (tmp_path / ".body.part").write_bytes(BODY[:5000])
    with pytest.raises(DataError, match="5,000 bytes are kept, run again"):
        fetch(server.remote("dead/body"), tmp_path)
    assert (tmp_path / ".body.part").read_bytes() == BODY[:5000]


def test_a_missing_file_is_said_at_once(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="answers 404"):
        fetch(server.remote("fine/nothing"), tmp_path)
    assert server.ranges == []


def test_a_wrong_published_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    wrong = server.remote("fine/body", sha256="0" * 64, published="a paper")
    with pytest.raises(DataError, match="another SHA-256 than published in a paper"):
        fetch(wrong, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_first_download_is_recorded_and_later_ones_are_held_to_it(server: Server, tmp_path: Path) -> None:
    path = fetch(server.remote("fine/body"), tmp_path)
    recorded = json.loads((tmp_path / "checksums.json").read_text())[server.remote("fine/body").url]
    assert recorded == {"size": len(BODY), "sha256": hashlib.sha256(BODY).hexdigest()}
    path.unlink()
    server.files["body"] = BODY[::-1]
    with pytest.raises(DataError, match="another SHA-256 than recorded at its first download"):
        fetch(server.remote("fine/body"), tmp_path)
    path.write_bytes(BODY[:-1])
    with pytest.raises(DataError, match=r"102,399 bytes instead of 102,400"):
        fetch(server.remote("fine/body"), tmp_path)


def packed(members: dict[str, bytes], link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
            tar.addfile(info)
    return buffer.getvalue()


def test_a_tar_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    (inside / "evil.tgz").write_bytes(packed({"../../evil.de": b"x", "/tmp/evil.en": b"x", "good.de": b"gut"}, link="good.en"))
    members = unpack(inside / "evil.tgz", ["good.de", "../../evil.de"], inside)
    assert all(path.parent == inside for path in members.values()) and members["good.de"].read_bytes() == b"gut"
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    with pytest.raises(DataError, match=r"has no file good\.en"):
        unpack(inside / "evil.tgz", ["good.en"], inside)
    (inside / "cut.tgz").write_bytes(packed({"x": BODY})[:300])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(inside / "cut.tgz", ["x"], inside)


def test_a_recipe_lays_out_its_splits(server: Server, tmp_path: Path) -> None:
    tags = b"<url>u</url>\n<title>Titel</title>\n Hallo Welt \n<talkid>1</talkid>\n<keywords>k</keywords>\nEnde\n"
    xml = '<doc>\n<seg id="1"> Er sagt: It’s &amp; more </seg>\n<seg id="2">zwei</seg>\n</doc>\n'.encode()
    server.files["ted.tgz"] = packed({"de-en/train.de": tags, "de-en/train.en": tags, "t.de.xml": xml, "t.en.xml": xml})
    server.files["v.de.gz"] = server.files["v.en.gz"] = gzip.compress(b"\xef\xbb\xbfeins\r\nzwei\n")
    ted = server.remote("fine/ted.tgz")
    captions = Part((server.remote("fine/v.de.gz"), server.remote("fine/v.en.gz")), "v.de.gz", "v.en.gz")
    splits = {
        "train": (Part((ted,), "de-en/train.de", "de-en/train.en", "ted"),),
        "valid": (captions, captions),
        "test": (Part((ted,), "t.de.xml", "t.en.xml", "segments"),),
    }
    facts = build("mine", Recipe("de", "en", splits, "us", "1 kB"), tmp_path / "out")
    read = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.de")}
    assert read == {
        "train.de": "Titel\nHallo Welt\nEnde\n",
        "valid.de": "eins\nzwei\neins\nzwei\n",
        "test.de": "Er sagt: It's & more\nzwei\n",
    }
    assert facts["splits"]["valid"]["lines"] == 4
    assert len(server.ranges) == 3, "each file is fetched once"


def test_own_files_of_any_compression_are_joined_and_checked(tmp_path: Path) -> None:
    for name, content in {"a.de": b"eins\n", "a.en": b"one\n", "c.de": b"x\ny\n", "c.en": b"x\n"}.items():
        (tmp_path / name).write_bytes(content)
    for name, content in {"b.de.gz": b"zwei\n", "b.en.gz": b"two\n"}.items():
        (tmp_path / name).write_bytes(gzip.compress(content))
    own(
        tmp_path / "out", "de", "en", [f"train={tmp_path}/a", f"train={tmp_path}/b", f"test={tmp_path}/a.de,{tmp_path}/b.en.gz"]
    )
    assert (tmp_path / "out" / "train.en").read_text() == "one\ntwo\n"
    with pytest.raises(DataError, match=r"c\.en ends after 1 lines, but .*c\.de goes on"):
        own(tmp_path / "bad", "de", "en", [f"train={tmp_path}/c"])
    assert not list((tmp_path / "bad").glob("*.*n")), "nothing half-written is left"
    with pytest.raises(DataError, match=r"there is no .*d\.de"):
        own(tmp_path / "bad", "de", "en", [f"train={tmp_path}/d"])
    with pytest.raises(ConfigError, match="write it as train=STEM"):
        own(tmp_path / "bad", "de", "en", ["train"])


def test_recipes_are_known_and_checksums_cite_their_source() -> None:
    assert {remote.published != "" for r in RECIPES.values() for parts in r.splits.values() for part in parts
            for remote in part.remotes if remote.sha256} == {True}  # fmt: skip
    assert "test_2017_mscoco" in recipe("multi30k.de-fr").splits and "test_2017_mscoco" not in recipe("multi30k.cs-en").splits
    with pytest.raises(ConfigError, match=r"no corpus 'wmt14\.ende'\. Did you mean wmt14\.en-de\?"):
        recipe("wmt14.ende")
    with pytest.raises(ConfigError, match="Multi30k has cs, de, en, fr"):
        recipe("multi30k.de-ru")
