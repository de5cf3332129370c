"""`bathy serve` under kills and damage: what is answered is right, and a server that dies leaves nothing in the way."""

import http.client
import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from harness import TALLY, Commands, amount, contents, damaged, dice
from test_damage import files

SENTENCES = 6


def ask(address: str, text: str) -> str | None:
    """A translation, or nothing where the server is gone."""
    body = json.dumps({"q": text, "source": "de", "target": "en"}).encode()
    request = urllib.request.Request(f"{address}translate", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(json.loads(answer.read())["translatedText"])
    except (urllib.error.URLError, ConnectionError, http.client.HTTPException):  # also an answer that is cut off
        return None


@pytest.fixture(scope="module")
def expected(bathy: Commands, home: Path) -> dict[str, str]:
    """Sentences and what `bathy translate` makes of them."""
    lines = (home / "raw/test.de").read_text().splitlines()[:SENTENCES]
    (home / "asked.de").write_text("".join(f"{line}\n" for line in lines))
    assert bathy("translate", "model", "-i", "asked.de", "-o", "asked.en").code == 0
    return dict(zip(lines, (home / "asked.en").read_text().splitlines(), strict=True))


@pytest.mark.parametrize("part", range(amount(1, 12)))
def test_a_server_that_is_killed_has_answered_right_and_starts_again(
    part: int, bathy: Commands, home: Path, expected: dict[str, str]
) -> None:
    """SIGKILL or SIGTERM while requests are under way; after SIGTERM those are finished, and the exit code is 0."""
    random, before = dice("serve", part), contents(home / "model")
    number = signal.SIGTERM if part % 3 == 0 else signal.SIGKILL
    answers: dict[str, str | None] = {}
    with bathy.running("serve", "model", "--port", "0", "--threads", "1") as server:
        address = server.says("serving").rpartition(" on ")[2]
        clients = [threading.Thread(target=lambda text=text: answers.update({text: ask(address, text)})) for text in expected]
        for client in clients:
            client.start()
        time.sleep(random.uniform(0, 0.3))
        os.kill(server.pid, number)
        for client in clients:
            client.join()
        while number == signal.SIGTERM and Path(f"/proc/{server.pid}").exists():
            time.sleep(0.02)
    assert server.result and server.result.code == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    assert all(answer == expected[text] for text, answer in answers.items() if answer is not None)
    assert contents(home / "model") == before


@pytest.mark.parametrize("part", range(amount(1, 8)))
@pytest.mark.parametrize("folder", ["model", "run"])
def test_a_damaged_model_is_not_served_or_answers_as_before(
    folder: str, part: int, bathy: Commands, home: Path, expected: dict[str, str]
) -> None:
    random = dice("serve damaged", folder, part)
    shutil.rmtree(home / "hurt_model", ignore_errors=True)
    shutil.copytree(home / folder, home / "hurt_model")
    text = next(iter(expected))
    assert bathy("translate", folder, "-i", "asked.de", "-o", "before.en").code == 0
    right = (home / "before.en").read_text().splitlines()[0]
    for path in random.sample(files(home / "hurt_model", ("config.toml",)), amount(1, 4)):
        with damaged(path, random) as way, bathy.running("serve", "hurt_model", "--port", "0", "--threads", "1") as server:
            address = server.says("serving").rpartition(" on ")[2]
            answer = ask(address, text) if address else right
        said = server.result is not None and "damaged" in server.result.err
        assert answer == right or said, (path, way)
        TALLY["kills"] -= server.result is not None and server.result.killed  # the end of a test is no disturbance
