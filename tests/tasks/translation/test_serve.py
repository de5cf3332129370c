# mypy: disable-error-code="union-attr, operator, index"
"""The server: LibreTranslate's API by its own client, nothing lost or mixed up under load, every bad request answered."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import folders
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libretranslatepy import LibreTranslateAPI

from bathy.errors import ConfigError
from bathy.tasks.translation.export import export
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.serve import engines
from bathy.tasks.translation.serve.settings import ServeConfig
from bathy.tasks.translation.serve.texts import join, split_html, split_text
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.translate import Translator

CHROMIUM = Path("/usr/bin/chromium")
KEY = "correct-horse-battery"
LINES = ["Der Hund schläft.", "Die alte Frau kauft heute ein rotes Haus.", "Wir lachen nie.", "Ein Kind sieht den Berg."]


def start(folder: Path, *options: object) -> tuple[subprocess.Popen[str], str]:
    """A server in a process of its own, and its address."""
    command = [sys.executable, "-m", "bathy", "serve", str(folder), "--port", "0", "--threads", "1", *map(str, options)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    line = process.stderr.readline()
    assert "http://" in line, line + process.stderr.read()
    return process, line.split(" on ")[1].strip()


def stop(process: subprocess.Popen[str]) -> None:
    """SIGTERM ends it with code 0, and what it said holds no traceback."""
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 0 and "Traceback" not in said


@pytest.fixture(scope="module")
def model(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "model"
    model = folders.sized(Codec.load(toy_data))
    for layer in model.decoder.layers:  # so that each source has a translation of its own
        layer.cross_attention.f.out.weight.mul_(30)
    return folders.model_folder(folder, toy_data, model)


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    process, address = start(model)
    yield address
    stop(process)


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, str]:
    found = Translator.load([model], Decode(beam=2)).translate(LINES)
    assert len({one.texts[0] for one in found}) == len(LINES)
    return {one.source: one.texts[0] for one in found}


def post(url: str, body: bytes | dict[str, Any], kind: str = "application/json") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_libretranslates_own_client_translates(address: str, expected: dict[str, str]) -> None:
    client = LibreTranslateAPI(address)
    assert [client.translate(line, "de", "en") for line in LINES] == [expected[line] for line in LINES]
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": []},
    ]
    assert client.detect(LINES[0])[0]["language"] == "de"


def test_lists_forms_paragraphs_and_html_keep_their_shape(address: str, expected: dict[str, str]) -> None:
    url = address + "translate"
    pair = {"source": "de", "target": "en"}
    assert post(url, {"q": LINES, **pair})[1]["translatedText"] == [expected[line] for line in LINES]
    assert post(url, {"q": f"{LINES[0]}  {LINES[2]}\n\n {LINES[3]}", **pair})[1]["translatedText"] == (
        f"{expected[LINES[0]]}  {expected[LINES[2]]}\n\n {expected[LINES[3]]}"
    )
    several = multipart(*(("q", line.encode()) for line in LINES), ("source", b"de"), ("target", b"en"))
    assert post(url, several, "multipart/form-data; boundary=x; charset=UTF-8")[1]["translatedText"] == list(expected.values())
    form = urllib.parse.urlencode({"q": LINES[0], "source": "auto", "target": "en"}).encode()
    answer = post(url, form, "application/x-www-form-urlencoded")[1]
    assert answer["translatedText"] == expected[LINES[0]] and answer["detectedLanguage"]["language"] == "de"
    plain = f"q={LINES[0]}&source=de&target=en".encode()  # as curl -d sends it
    assert post(url, plain, "application/x-www-form-urlencoded")[1]["translatedText"] == expected[LINES[0]]
    assert post(f"{url}?source=de&target=en", {"q": LINES[0]})[1]["translatedText"] == expected[LINES[0]]
    page = f'<p class="a&amp;b">{LINES[0]}<br/><img src=x></p><script>if (a<b) "x"</script><!-- {LINES[1]} -->'
    shape = page.replace(LINES[0], expected[LINES[0]].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    assert post(url, {"q": page, "format": "html", **pair})[1]["translatedText"] == shape
    answer = post(url, {"q": LINES[1], "alternatives": 1, **pair})[1]
    assert answer["translatedText"] == expected[LINES[1]] and answer["translatedText"] not in answer["alternatives"]


def test_sixteen_clients_lose_nothing_and_get_their_own(address: str, expected: dict[str, str]) -> None:
    def ask(number: int) -> bool:
        lines = [LINES[(number + i) % 4] for i in range(1 + number % 5)]
        status, answer = post(address + "translate", {"q": lines, "source": "de", "target": "en"})
        return status == 200 and answer["translatedText"] == [expected[line] for line in lines]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(160)))


QUESTIONS: list[Any] = [None, 1, 1.5, True, {}, [], [1], [["a"]], "x" * 20_001, ["x"] * 257]
NOT_A_NAME: list[Any] = [1, None, [], "xx"]
NOT_A_COUNT: list[Any] = [-1, 1.5, "a", True, 10**30, []]

PAIR = {"source": "de", "target": "en"}


def multipart(*fields: tuple[str, bytes]) -> bytes:
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value) for name, value in fields
    ]
    return b"".join(parts) + b"--x--\r\n"


BAD: list[tuple[bytes | dict[str, Any], str]] = [
    (b"{", "application/json"),
    (b"[1]", "application/json"),
    (b'"text"', "application/json"),
    (b"null", "application/json"),
    (b"\xff\xfe", "application/json"),
    (b'{"q": "\xff"}', "application/json"),
    (b'{"q": "\\ud800", "source": "de", "target": "en"}', "application/json"),
    (b"[" * 100_000, "application/json"),
    (b"q=%ff&source=de&target=en", "application/x-www-form-urlencoded"),
    (b"q", "application/x-www-form-urlencoded"),
    (b"", "application/x-www-form-urlencoded"),
    (b"q=\xe4&source=de&target=en", "application/x-www-form-urlencoded"),
    (b"\xc3\xa4=1", "application/x-www-form-urlencoded"),
    (b"&".join([b"a=1"] * 5000), "application/x-www-form-urlencoded"),
    (b"--x\r\nnothing", "multipart/form-data; boundary=x"),
    (b"--x", "multipart/form-data"),
    (b"<q/>", "text/xml"),
    ({"q": "Ja", "source": "de", "target": "en"}, "application/json; charset=utf-16"),
    (b"q=Ja&source=de&target=en", 'application/x-www-form-urlencoded; a=b; charset="latin-1"'),
    *(
        (multipart(("q", q), ("source", b"de"), ("target", b"en")), f"multipart/form-data; boundary=x{charset}")
        for q, charset in (
            (b"\xff", ""),
            (b"\xe4", "; charset=latin-1"),
            (b"J\0a\0", "; charset=utf-16"),
            (b"\xed\xa0\x80", ""),
        )
    ),
    (multipart(("q", b"Ja"), ("source", b"de"), ("target", b"en"), ("q", b"Nein"))[:-8], "multipart/form-data; boundary=x"),
    *(({"q": q, **PAIR}, "application/json") for q in QUESTIONS),
    *(({"q": "x", **PAIR, name: value}, "application/json") for name in ("source", "target", "format") for value in NOT_A_NAME),
    *(({"q": "x", **PAIR, "alternatives": value}, "application/json") for value in NOT_A_COUNT),
    ({"q": "x", "source": "en", "target": "de"}, "application/json"),
    ({"q": "a " * 9000, **PAIR}, "application/json"),  # a sentence that the model cannot read to its end
    ({"q": "a\n" * 1001, **PAIR}, "application/json"),
    ({"q": "x"}, "application/json"),
]


@pytest.mark.parametrize(("body", "kind"), BAD, ids=range(len(BAD)))
def test_a_malformed_request_is_answered_with_one_line(body: Any, kind: str, address: str) -> None:
    status, answer = post(address + "translate", body, kind)
    assert 400 <= status < 500 and set(answer) == {"error"} and "\n" not in answer["error"]
    assert "Traceback" not in answer["error"] and "/src/" not in answer["error"] and "site-packages" not in answer["error"]


@given(
    st.one_of(st.binary(max_size=200), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda x: {"q": x}))
)
def test_random_requests_never_break_the_server(address: str, body: Any) -> None:
    status, answer = post(address + "translate", body)
    assert 400 <= status < 500 and set(answer) == {"error"}


def test_huge_and_slow_bodies_and_broken_requests_are_cut_off(address: str, expected: dict[str, str]) -> None:
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    begin = f"POST /translate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    for head, status in (
        (begin + "Content-Length: 99999999\r\n\r\n", b"413"),
        (begin + "Content-Length: x\r\n\r\n", b"400"),
        (begin + f"X: {'x' * 100_000}", b"400"),
        (begin + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        ("NONSENSE\r\n\r\n", b"400"),
    ):
        with socket.create_connection((host, int(port)), 20) as client:
            client.sendall(head.encode())
            assert status in client.recv(4096).split(b"\r\n")[0]
    assert post(address + "translate", {"q": LINES[0], **PAIR})[1]["translatedText"] == expected[LINES[0]]


def test_health_metrics_and_the_rest_of_the_paths(address: str) -> None:
    def read(path: str) -> str:
        return str(urllib.request.urlopen(address + path, timeout=20).read().decode())

    assert json.loads(read("health")) == {"status": "ok"} and not json.loads(read("frontend/settings"))["keyRequired"]
    text = read("metrics")
    assert 'bathy_requests_total{path="/health",status="200"}' in text
    buckets = [int(line.split()[1]) for line in text.splitlines() if line.startswith("bathy_translate_seconds_bucket")]
    assert buckets == sorted(buckets) and f"bathy_translate_seconds_count {buckets[-1]}" in text
    for path, status in (("nothing", 404), ("translate", 405), ("health/", 404), ("/health", 404)):
        with pytest.raises(urllib.error.HTTPError) as error:
            read(path)
        assert error.value.code == status and json.loads(error.value.read())["error"]


def test_keys_full_queues_and_sigterm(model: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY}\n")
    process, address = start(model, "--api-keys", tmp_path / "keys", "--queue", 40, "--characters", 100_000)
    try:
        pair = {**PAIR, "api_key": KEY}
        assert (
            post(address + "translate", {"q": "Ja", **PAIR})[0]
            == post(address + "translate", {**pair, "q": "Ja", "api_key": "x"})[0]
            == 403
        )
        assert LibreTranslateAPI(address, KEY).translate("Ja", "de", "en") is not None
        assert post(address + "translate", {"q": LINES * 11, **pair})[0] == 400
        statuses: list[int] = []
        ask = lambda: statuses.append(post(address + "translate", {"q": LINES * 9, **pair})[0])  # noqa: E731
        clients = [threading.Thread(target=ask) for _ in range(6)]
        for client in clients:
            client.start()
        time.sleep(0.3)
        stop(process)
        for client in clients:
            client.join()
        assert set(statuses) <= {200, 503} and 200 in statuses
    finally:
        process.kill()


def test_a_full_queue_says_when_to_come_back(model: Path) -> None:
    import asyncio

    from starlette.testclient import TestClient

    from bathy.tasks.translation.serve.app import Server
    from bathy.tasks.translation.serve.batcher import Batcher

    class Stuck:
        source, target, most, longest, free = "de", "en", 1, 1000, threading.Event()
        codec: Any = None

        def translate(self, lines: Any, n_best: int) -> list[list[str]]:
            self.free.wait(20)
            return [[line.upper()] for line in lines]

    batcher = Batcher(Stuck(), batch=4, room=6)
    with TestClient(Server({("de", "en"): batcher}, ServeConfig(timeout=0.2, queue=6)).app()) as client:
        assert client.post("/translate", json={"q": ["a"] * 7, **PAIR}).status_code == 400  # would never fit
        assert client.post("/translate", json={"q": ["a"] * 6, **PAIR}).status_code == 504
        full = client.post("/translate", json={"q": "b", **PAIR})
        assert full.status_code == 503 and int(full.headers["Retry-After"]) > 0
        Stuck.free.set()
        while batcher.sentences:
            asyncio.run(asyncio.sleep(0.01))
        assert client.post("/translate", json={"q": "b", **PAIR}).json() == {"translatedText": "B"}


class Upper:
    """An engine that takes note of its batches."""

    source, target, most, longest = "de", "en", 1, 1000
    codec: Any = None

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.free = threading.Event()

    def translate(self, lines: Any, n_best: int) -> list[list[str]]:
        self.free.wait(20)
        self.batches.append(list(lines))
        if "poison" in lines:
            raise RuntimeError("/secret/path")
        return [[line.upper()] for line in lines]


def test_a_long_text_takes_turns_with_short_ones_and_stays_in_order() -> None:
    import asyncio

    from bathy.tasks.translation.serve.batcher import Batcher

    async def ask() -> None:
        engine = Upper()
        batcher = Batcher(engine, batch=4, room=100)
        texts = ["x"], [*"abcdefghij"], ["z"]
        waiting = [asyncio.ensure_future(batcher.translate(lines, 1)) for lines in texts]
        gone = asyncio.ensure_future(batcher.translate(["never"], 1))
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.sleep(0.05)
        engine.free.set()
        assert await asyncio.gather(*waiting) == [[[line.upper()] for line in lines] for lines in texts]
        await asyncio.to_thread(batcher.close)
        assert batcher.sentences == 0 and ["never"] not in engine.batches
        served = [line for batch in engine.batches for line in batch]
        assert served.index("z") < served.index("j") and max(map(len, engine.batches)) <= 4

    asyncio.run(ask())


def test_a_failed_batch_is_answered_without_a_path_and_pages_elsewhere_need_leave() -> None:
    from starlette.testclient import TestClient

    from bathy.tasks.translation.serve.app import Server
    from bathy.tasks.translation.serve.batcher import Batcher

    engine = Upper()
    engine.free.set()
    for origins in ((), ("https://example.org",)):
        batcher = Batcher(engine, batch=4, room=100)
        with TestClient(Server({("de", "en"): batcher}, ServeConfig(origins=origins)).app()) as client:
            failed = client.post("/translate", json={"q": "poison", **PAIR})
            assert failed.status_code == 500 and "/" not in failed.json()["error"]
            answer = client.post("/translate", json={"q": "a", **PAIR}, headers={"Origin": "https://example.org"})
            assert answer.headers.get("access-control-allow-origin") == (origins[0] if origins else None)


def test_a_connection_that_brings_no_request_is_closed() -> None:
    import asyncio

    from uvicorn import Config, Server

    from bathy.tasks.translation.serve.protocol import patient

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def ask() -> list[bytes]:
        config = Config(app, port=0, http=patient(0.3, 3), lifespan="off", log_level="error", timeout_keep_alive=1)
        server = Server(config)
        running = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        begun = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n12"  # answered, and its body never ends
        found = []
        for text in ("", "GET / HTTP/1.1\r\nHost:", begun, "GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text.encode())
            found.append(await asyncio.wait_for(reader.read(), 20))
            writer.close()
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        held[-1][1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        found.append(await asyncio.wait_for(held[-1][0].read(), 20))
        for _, writer in held:
            writer.close()
        server.should_exit = True
        await running
        return found

    silent, slow, unfinished, old, twice, one_too_many = asyncio.run(ask())
    head, _, body = one_too_many.partition(b"\r\n\r\n")
    assert b" 503 " in head and b"retry-after: 2" in head.lower() and set(json.loads(body)) == {"error"}
    assert b"408" in silent.split(b"\r\n")[0] and b"408" in slow.split(b"\r\n")[0] and json.loads(slow.split(b"\r\n\r\n")[1])
    assert unfinished.count(b"HTTP/1.1 200") == 1 == old.count(b" 200 ") and twice.count(b" 200 ") == 2


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_an_exported_folder_is_served_with_its_settings_and_a_batch_changes_nothing(
    kind: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Decode(beam=2, length_penalty=0.9)
    export(model, "ctranslate2", tmp_path / "exported", decode, kind=kind)
    monkeypatch.setattr(engines, "GRAIN", 4)  # so that these lines have different limits
    engine: Any = engines.open_engine(tmp_path / "exported", 64, 1)
    assert (engine.decode, engine.longest) == (decode, Translator.load([model], decode).longest)
    with pytest.raises(ConfigError, match="--precision"):
        engines.open_engine(tmp_path / "exported", 64, 1, precision="float32")
    lines = [*LINES, "", *LINES[::-1]]
    assert engine.translate(lines, 2) == [engine.translate([line], 2)[0] for line in lines]


def test_beyond_loopback_needs_keys() -> None:
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.org"):
        with pytest.raises(ConfigError, match="--api-keys"):
            ServeConfig(host=host)
        ServeConfig(host=host, keys=(KEY,))
    for host in ("127.0.0.1", "::1", "localhost"):
        ServeConfig(host=host)
    assert KEY not in repr(ServeConfig(keys=(KEY,)))
    for origin in ("", "example.org", "https://example.org/", "https://a/b", "null", "**"):
        with pytest.raises(ConfigError, match="an origin is"):
            ServeConfig(origins=(origin,))
    ServeConfig(origins=("*", "http://localhost:8000", "https://example.org"))


@given(st.text(alphabet="ab .!?\n\r\t\v\f\x1c\x85\u2028Ä<>&;\"'z1…", max_size=60))
def test_a_text_is_its_pieces(text: str) -> None:
    for split in (split_text, split_html):
        pieces = split(text)
        assert all(piece.text.strip() == piece.text and piece.text for piece in pieces if piece.translate)
        assert all(piece.text.splitlines() == [piece.text] for piece in pieces if piece.translate)
    pieces = split_text(text)
    assert join(pieces, [piece.text for piece in pieces if piece.translate]) == text


MARKUP = st.sampled_from(
    ["<b>", "</b>", "<p id='x>'>", "</p>", "<br>", "Der Hund.", " ", "&amp;", "<!-- a > b -->", "<pre>", "</pre>", "\n", "<a",
     "<![", "<!", "<?", "</", "<script>", "</script>", "'", '"', "=", "&nbsp;", "<p translate=no>", "<svg/>", "\0"]
)  # fmt: skip


@given(st.lists(MARKUP, max_size=12).map("".join))
def test_tags_and_comments_stay_byte_for_byte(markup: str) -> None:
    import html

    pieces = split_html(markup)
    again = join(pieces, [piece.text for piece in pieces if piece.translate], lambda text: html.escape(text, False))
    assert html.unescape(again) == html.unescape(markup)


HOSTILE = [
    " ",
    "\n",
    "<",
    "<a ",
    "<!--",
    "</",
    "&",
    "<![",
    "<?",
    ".",
    '."',
    "<svg>",
    "<a b='",
    "= ",
    "<script></b>",
    "</i>",
    "&#9",
]


@pytest.mark.parametrize("part", HOSTILE)
def test_splitting_is_linear_in_the_text(part: str) -> None:
    """A quadratic scan of so much text does not come back in time."""
    for text in (part * 40_000, f"a{part * 40_000}b", f"<pre>{'<b>' * 40_000}{part * 40_000}"):
        assert sum(len(piece.text) for piece in split_text(text)) == len(text)
        split_html(text)


def test_a_characters_number_may_have_any_length() -> None:
    for number, character in (("9" * 5000, "\ufffd"), ("0" * 5000 + "65", "A"), ("1114112", "\ufffd"), ("128512", "😀")):
        assert [piece.text for piece in split_html(f"Ein &#{number}; Hund") if piece.translate] == [f"Ein {character} Hund"]


def test_what_is_no_language_is_not_translated() -> None:
    for text, kept in (("… !", True), ("3", False), ("<p>&nbsp;</p>", True), ("<p>&lt;&gt;</p>", True), ("a &lt; b", False)):
        pieces = split_html(text)
        assert any(piece.translate for piece in pieces) is not kept
        if kept:
            assert "".join(piece.text for piece in pieces) == text
    assert [piece.text for piece in split_html("Ja</>Nein</ p>Nie") if piece.translate] == ["Ja", "Nein", "Nie"]
    named = [piece.text for piece in split_html("<p translate=no>Hallo <b>du</b></p><p>Ja<br>Nein</p>") if piece.translate]
    assert named == ["Ja", "Nein"]


def test_sentences_end_where_they_end() -> None:
    shown = [piece.text for piece in split_text('Er kam. "Ja!" Sie ging… 3 Hunde z. B. Dr. No.') if piece.translate]
    assert shown == ["Er kam.", '"Ja!"', "Sie ging…", "3 Hunde z. B. Dr. No."]


@pytest.mark.slow
def test_the_page_translates_in_a_browser(address: str, expected: dict[str, str]) -> None:
    from playwright.sync_api import sync_playwright

    if not CHROMIUM.exists():
        pytest.skip("there is no /usr/bin/chromium; `apt-get install chromium` brings it")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.get_by_label("Text", exact=True).fill(f"{LINES[0]}\n<b>{LINES[1]}")
        page.get_by_role("button", name="Translate").click()
        page.wait_for_function("document.getElementById('result').textContent")
        assert expected[LINES[0]] in page.locator("#result").text_content()
        assert page.locator("#result b").count() == 0 and not errors
        browser.close()
