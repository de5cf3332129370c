"""`bathy watch` follows runs as they are written, whatever state their files are in."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from typer.testing import CliRunner

import bathy
from bathy.cli import app
from bathy.clinic.readings import Reading, to_line
from bathy.lab.watch import Watch
from bathy.lab.watch.page import summary
from bathy.lab.watch.run import MOST_SAMPLES, Run
from bathy.lab.watch.server import handler
from bathy.lab.watch.tail import Tail

CHROMIUM = Path("/usr/bin/chromium")
NASTY = "<img src=x onerror=alert(1)>"


def line(**row: Any) -> str:
    return json.dumps(row) + "\n"


def write_run(folder: Path, steps: int = 40, whole: int = 40, **last: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f"[train]\nsteps = {whole}\n", encoding="utf-8")
    rows = [line(step=step, loss=5 - step / 20, nll=5 - step / 20, lr=1e-3) for step in range(10, steps + 1, 10)]
    (folder / "metrics.jsonl").write_text("".join(rows) + (line(step=steps, **last) if last else ""), encoding="utf-8")
    return folder


def test_half_written_and_damaged_lines_are_passed_over_until_they_are_whole(tmp_path: Path) -> None:
    path, tail = tmp_path / "metrics.jsonl", Tail(tmp_path / "metrics.jsonl")
    assert tail.new() == ([], False)
    path.write_bytes(line(step=1).encode() + b'\xff\xfe{"ste\n[1]\n' + line(step=2).encode()[:6])
    assert tail.new() == ([{"step": 1}], True)
    with path.open("ab") as file:
        file.write(line(step=2).encode()[6:])
    assert tail.new() == ([{"step": 2}], False) and tail.new() == ([], False)


def test_a_file_that_a_resumed_run_cut_back_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(step=1) + line(step=2, loss=9.0), encoding="utf-8")
    tail = Tail(path)
    tail.new()
    path.write_text(line(step=1) + line(step=2, loss=1.0) + line(step=3), encoding="utf-8")  # in place, and longer
    assert tail.new() == ([{"step": 1}, {"step": 2, "loss": 1.0}, {"step": 3}], True)
    (tmp_path / "new").write_text(line(step=1), encoding="utf-8")
    (tmp_path / "new").replace(path)
    assert tail.new() == ([{"step": 1}], True)


def test_a_run_says_what_state_it_is_in(tmp_path: Path) -> None:
    late = Watch([tmp_path / "late"])
    assert [run.state for run in late.look()] == ["waiting"]
    os.utime(write_run(tmp_path / "old", 20) / "metrics.jsonl", (1, 1))
    write_run(tmp_path / "new", 20)
    write_run(tmp_path / "done")
    write_run(tmp_path / "failed", 20, stopped="loss rose")
    write_run(tmp_path / "late", 20)
    watch = Watch([tmp_path])
    assert {run.name: run.state for run in watch.look()} == {
        "done": "finished", "failed": "stopped", "late": "training", "new": "training", "old": "silent",
    }  # fmt: skip
    assert [run.step for run in late.look()] == [20]
    assert "failed was stopped: loss rose" in summary(watch.look()).what and "postmortem" in summary(watch.look()).todo
    with (tmp_path / "failed/metrics.jsonl").open("a") as file:
        file.write(line(step=30, nll=1.0))
    assert "old" in summary(watch.look()).what


def test_warnings_are_those_that_the_monitor_gave_and_samples_stay_few(tmp_path: Path) -> None:
    model = tiny.model("post_ln", (12, 2))
    readings = tmp_path / "run/readings.jsonl"
    write_run(tmp_path / "run")
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with bathy.Monitor(model, readings, every=1, batch=tiny.batch(model), on_warning=lambda finding: None) as monitor:
        for _ in range(9):
            model(*tiny.batch(model)).square().mean().backward()
            optimizer.step()
            monitor.step(1.0)
    run = Run(tmp_path / "run", "run")
    run.look()
    assert monitor.findings and [(f.name, f.step) for f in run.findings] == [(f.name, f.step) for f in monitor.findings]
    one = run.samples[-1][:5]
    with readings.open("a", encoding="utf-8") as file:
        for step in range(10, 10 + 2 * MOST_SAMPLES):
            file.writelines(to_line(Reading(row.quantity, row.value, step=step)) + "\n" for row in one)
    run.look()
    assert len(run.samples) <= MOST_SAMPLES + 1 and run.samples[-1][0].step == 9 + 2 * MOST_SAMPLES


def test_a_finished_run_becomes_a_page_that_stands_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 40, sample=NASTY)
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (
        NASTY not in page
        and "&lt;img src=x" in page
        and "fetch(" not in re.sub(r"<script>.*?</script>", "", page, count=1, flags=re.S)
    )
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "page.html")])
    assert result.exit_code and "is a file" in str(result.exception)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, int]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(Watch([tmp_path / "runs"])))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield "127.0.0.1", server.server_port
    server.shutdown()
    server.server_close()


def ask(address: tuple[str, int], path: str, host: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_server_answers_this_machine_only_and_survives_odd_folders(address: tuple[str, int], tmp_path: Path) -> None:
    assert ask(address, "/state")[0] == 200 and ask(address, "/../etc")[0] == 404
    assert ask(address, "/state", host="evil.example:80")[0] == 403
    write_run(tmp_path / "runs" / "a b")
    (tmp_path / "runs/broken/metrics.jsonl").mkdir(parents=True)
    (tmp_path / "runs/odd").mkdir()
    (tmp_path / "runs/odd/config.toml").write_bytes(b"\xff[[")
    state = json.loads(ask(address, "/state")[1])
    assert all(name in state["blocks"]["runs"] for name in ("a b", "broken", "odd")) and "curves" in state["specs"]


def test_it_listens_on_loopback_and_ends_with_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bathy", "watch", str(tmp_path), "--port", "0", "--minutes", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        said = process.stderr.readline()
        port = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
        assert port, said
        assert ask(("127.0.0.1", int(port[1])), "/state")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_follows_in_a_browser(address: tuple[str, int], tmp_path: Path, width: int) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip("there is no /usr/bin/chromium; `apt-get install chromium` brings it")
    one = write_run(tmp_path / "runs" / "one", 20, sample=NASTY)
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark")
        said: list[str] = []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.goto(f"http://127.0.0.1:{address[1]}/")
        page.wait_for_selector("#figure-curves svg")
        with (one / "metrics.jsonl").open("a") as file:
            file.write(line(step=30, nll=3.5, lr=1e-3) + line(step=30, stopped="the loss rose"))
        write_run(tmp_path / "runs" / "two")
        page.wait_for_function("document.querySelectorAll('#runs article').length === 2")
        page.wait_for_function("document.querySelector('#summary').textContent.includes('one was stopped: the loss rose')")
        assert page.evaluate("document.documentElement.scrollWidth") <= width and not said
        browser.close()
