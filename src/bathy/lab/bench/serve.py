"""Serving: throughput beside `bathy translate` on the same text, and latency at 1, 4 and 16 clients.

The server is a process of its own with one thread for the products; the clients are threads of this one, on loopback. Random
weights and translations of one length, so that both ways take the same steps; every answer is compared with `translate`'s.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from bathy import console
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import BathyError, require
from bathy.lab.bench import ratio
from bathy.lab.bench.data import prepare_data
from bathy.tasks.lines import read_lines
from bathy.tasks.models import save_model
from bathy.tasks.translation.corpora.layout import splits
from bathy.tasks.translation.data import read_manifest
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.translate import Translator, chunked

SHAPE: dict[str, Any] = {"encoder_layers": 6, "decoder_layers": 2, "width": 256, "ffn": 1024, "heads": 4}
VOCAB, LENGTH = 4000, 20
LINES, TEXTS, ROUNDS = 256, 16, 7
"""Sentences of a round, texts of a request in the comparison with `translate`, and pairs of rounds."""
CLIENTS = {1: 100, 4: 200, 16: 400}
"""Clients at a time, and requests of one sentence that they send in all."""
MOST = 16


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Print and return throughput as a share of `translate`'s, latencies, and the number of wrong answers."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        lines = write_model(folder, prepare_data(data, VOCAB), LINES if not quick else 64)
        translator = Translator.load([folder], decode())
        with server(folder) as (address, process):
            wanted = [one.texts[0] for one in translator.translate(lines)]
            result = compare(translator, lines, wanted, address, process, ROUNDS if not quick else 1)
            result["latency"] = {
                str(clients): latency(address, lines, wanted, clients, count if not quick else 2 * clients)
                for clients, count in CLIENTS.items()
            }
    result["distinct"] = len(set(wanted)) / len(wanted)
    result["load"] = os.getloadavg()[0]
    _show(result)
    return result


def decode() -> Decode:
    """Search settings of both ways."""
    return Decode(beam=4, min_length=LENGTH, max_length=LENGTH)


def write_model(folder: Path, data: Path, count: int) -> list[str]:
    """A model folder for the data's text, and that many of its source sentences."""
    torch.manual_seed(0)
    codec, text = Codec.load(data), read_manifest(data)["settings"]["prepare"]
    model = Transformer(TransformerConfig(vocab=codec.vocab, **SHAPE)).eval()
    with torch.no_grad():
        for layer in model.get_submodule("decoder").layers:  # type: ignore[union-attr]
            for part in ("q", "out"):  # each source has a translation of its own
                layer.get_parameter(f"cross_attention.f.{part}.weight").mul_(30)
    folder.mkdir()
    save_model(model, folder, decode=decode().model_dump())
    codec.save(folder)
    train = splits(Path(text["raw"]), text["source"], text["target"])["train"][0]
    return list(islice((line for line in read_lines(train) if line.strip()), count))


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`bathy serve` of the folder on a free port; its address and process. It is stopped at the end."""
    require("uvicorn", "serve")
    command = [sys.executable, "-m", "bathy", "serve", str(folder), "--port", "0", "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        if "http://" not in said:
            raise BathyError(f"the server did not start: {said.strip()}")
        yield urlsplit(said[said.index("http://") :].strip()).netloc, process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def compare(
    translator: Translator, lines: Sequence[str], wanted: Sequence[str], address: str, process: Any, rounds: int
) -> dict[str, Any]:
    """Both ways over all the lines in turns: seconds on the clock, and of the CPU in this process and the server's."""
    seconds: dict[str, list[float]] = {name: [] for name in ("translate", "serve", "translate CPU", "serve CPU")}
    wrong = 0
    for _ in range(rounds + 1):
        start, cpu = time.perf_counter(), time.process_time()
        translator.translate(lines)
        seconds["translate"].append(time.perf_counter() - start)
        seconds["translate CPU"].append(time.process_time() - cpu)
        start, cpu = time.perf_counter(), cpu_seconds(process.pid)
        answers = [answer for answer, _ in ask(address, list(chunked(lines, TEXTS)), MOST)]
        seconds["serve"].append(time.perf_counter() - start)
        seconds["serve CPU"].append(cpu_seconds(process.pid) - cpu)
        wrong += sum(a != b for a, b in zip([one for many in answers for one in many], wanted, strict=True))
    counted = {name: values[1:] for name, values in seconds.items()}  # the first round warms up
    share = {
        kind: dict(zip(("median", "low", "high"), ratio(counted[f"translate{kind}"], counted[f"serve{kind}"]), strict=True))
        for kind in ("", " CPU")
    }
    per_second = {way: len(lines) / sorted(counted[way])[rounds // 2] for way in ("translate", "serve")}
    return {"throughput": share[""], "CPU": share[" CPU"], "sentences per second": per_second, "wrong": wrong}


def latency(address: str, lines: Sequence[str], wanted: Sequence[str], clients: int, count: int) -> dict[str, Any]:
    """Requests of one sentence each: milliseconds of the middle one and of the slowest in a hundred."""
    places = [i % len(lines) for i in range(count)]
    start = time.perf_counter()
    found = ask(address, [[lines[i]] for i in places], clients)
    whole = time.perf_counter() - start
    taken = sorted(1000 * seconds for _, seconds in found)
    at = {f"p{share}": taken[min(count - 1, count * share // 100)] for share in (50, 99)}
    wrong = sum(answer != [wanted[i]] for i, (answer, _) in zip(places, found, strict=True))
    return {**at, "requests": count, "per second": count / whole, "wrong": wrong}


Answer = tuple[list[str], float]
"""Translations, and the seconds they took."""


def ask(address: str, requests: Sequence[Sequence[str]], clients: int) -> list[Answer]:
    """The answer to each request, in order, sent by so many clients, each with one connection that it keeps."""
    found: list[Answer] = [([], 0.0)] * len(requests)
    places = iter(range(len(requests)))
    lock = threading.Lock()

    def client(_: int) -> None:
        with closing(http.client.HTTPConnection(address, timeout=120)) as connection:
            while True:
                with lock:
                    place = next(places, None)
                if place is None:
                    return
                found[place] = send(connection, requests[place])

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return found


def send(connection: http.client.HTTPConnection, texts: Sequence[str]) -> Answer:
    """One request and its answer; no translations where the server refuses."""
    start = time.perf_counter()
    body = json.dumps({"q": list(texts), "source": "auto", "target": "en"})
    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
    answer = json.load(connection.getresponse())
    return answer.get("translatedText", []), time.perf_counter() - start


def cpu_seconds(process: int) -> float:
    """CPU seconds of a process so far (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _show(result: dict[str, Any]) -> None:
    share, cpu = (f"{r['median']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" for r in (result["throughput"], result["CPU"]))
    rows = [
        (clients, row["requests"], row["p50"], row["p99"], row["per second"], row["wrong"])
        for clients, row in result["latency"].items()
    ]
    console.out.print(
        f"throughput over `translate`'s: {share} on the clock, {cpu} for each CPU-second; wrong answers: {result['wrong']}"
    )
    console.out.print(
        console.table("one sentence a request", ["clients", "requests", "p50 ms", "p99 ms", "requests/s", "wrong"], rows)
    )
