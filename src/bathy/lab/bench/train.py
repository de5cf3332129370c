"""Training speed: operations that real tokens need, in CPU time, against the matrix product's peak in the same run."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median, mode
from typing import Any, cast

import torch

from bathy import console
from bathy.kernels.choose import by_modules
from bathy.kernels.library import COMPILED, library, products_by
from bathy.kernels.memory import hold_memory
from bathy.lab.bench import interleaved, ratio
from bathy.lab.bench.data import CACHE, prepare_data
from bathy.lab.bench.marian import compare
from bathy.tasks import make_task, read_config
from bathy.tasks.translation.batches import Batches
from bathy.tasks.translation.config import Config
from bathy.train.flops import gemm_peak
from bathy.train.state import State, begin
from bathy.train.task import peek, take
from bathy.train.update import update
from bathy.train.world import World, joined

SETTINGS = {
    "model.width": 512, "model.heads": 4, "model.ffn": 1024, "model.dropout": 0.3, "train.tokens": 4096, "optim.warmup": 100,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "radam": {"optim.name": "radam"},
    "adam": {"optim.name": "adam"},
    "radam, dropout .3/.1/.1": {"model.attention_dropout": 0.1, "model.activation_dropout": 0.1},
}
DEPTHS = (6, 12, 25, 50, 100)
WIDTHS = (64, 128)
VOCAB = 8000
WARM = 4
"""Updates before the clock runs: memory has grown to its size then."""


Compared = dict[str, tuple[float, float, tuple[float, ...]]]
"""Another way to compute: CPU seconds of an update as it runs and that way, their ratio and its 95 % interval."""


@dataclass(frozen=True)
class Speed:
    """What a case gave over the updates that were measured."""

    utilisation: float
    """Operations of real tokens for each CPU-second, over the GEMM peak."""
    peak: float
    """GEMM operations per second, measured between the updates."""
    library: str
    """What reached that peak."""
    tokens: float
    """Real tokens, both sides, for each CPU-second."""
    efficiency: float
    """Real tokens among all."""
    seconds: float
    """CPU time of an update."""
    memory: float
    """Peak memory of the process in GB."""


def run(data: Path | None, quick: bool, only: str = "") -> dict[str, Any]:
    """Each case in a process of its own, batches taken evenly from an epoch's order; then two ranks, depth, Hugging Face.

    `only` is "kernels", or names cases of the last part; that alone is then measured.
    """
    folder = prepare_data(data, vocab=VOCAB)
    if only == "kernels":
        return {"fused": _show_kernels(folder, WIDTHS, 18, 20)}
    if only:
        return {"beside Hugging Face": compare(folder, only)}
    updates = 3 if quick else 12
    speeds = {name: _apart(folder, CASES[name], updates) for name in (list(CASES)[:1] if quick else CASES)}
    if not quick:
        speeds["radam, two ranks"] = _apart(folder, CASES["radam"], updates, ranks=2)
    columns = [
        "case",
        "of GEMM peak",
        "GEMM peak, GF/s",
        "by",
        "real tokens/CPU-s",
        "real/all tokens",
        "CPU-s/update",
        "peak GB",
    ]
    rows = [
        (name, s.utilisation, s.peak / 1e9, s.library, s.tokens, s.efficiency, s.seconds, s.memory)
        for name, s in speeds.items()
    ]
    sizes = f"width {SETTINGS['model.width']}, {SETTINGS['train.tokens']} tokens"
    console.out.print(console.table(f"6L-6L, {sizes}, {folder.name}, float32, one thread", columns, rows))
    depth = _by_depth(folder, DEPTHS[:2] if quick else DEPTHS)
    shown = [(f"{n}L-{n}L", seconds, 1000 * seconds / (2 * n)) for n, seconds in depth.items()]
    title = "step time and depth: width 64, 1024 tokens, admin"
    console.out.print(console.table(title, ["model", "CPU-s/update", "CPU-ms/layer"], shown))
    fused = _show_kernels(folder, WIDTHS[:1], 1, 2) if quick else _show_kernels(folder, WIDTHS, 18, 20)
    beside = compare(folder, "width 64, float32", layers=1, pairs=2) if quick else compare(folder)
    speed = {name: asdict(speed) for name, speed in speeds.items()}
    return {"speed": speed, "depth": depth, "fused": fused, "beside Hugging Face": beside}


def _show_kernels(folder: Path, widths: tuple[int, ...], layers: int, rounds: int) -> dict[int, Compared]:
    """Print and return what the kernels gain."""
    fused = _fused(folder, widths, layers, rounds)
    compared = [
        (f"width {width}, {way}", 1000 * one, 1000 * other, *numbers)
        for width, ways in fused.items()
        for way, (one, other, numbers) in ways.items()
    ]
    columns = [
        "18L-18L, 1024 tokens, dropout .1/.1/.1",
        "as it runs, CPU-ms",
        "so, CPU-ms",
        "so / as it runs",
        "95 % from",
        "to",
    ]
    console.out.print(console.table("an update as it runs, and without its kernels, in turns", columns, compared))
    return fused


def _apart(folder: Path, changes: dict[str, Any], updates: int, ranks: int = 1) -> Speed:
    """A case measured in fresh processes, so that its peak memory is its own."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    start = launcher if ranks > 1 else [sys.executable, "-m"]
    command = [*start, "bathy.lab.bench.train", str(folder), json.dumps(SETTINGS | changes), str(updates)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Speed(**json.loads(done.stdout.splitlines()[-1]))


def measure(config: Config, world: World, updates: int) -> Speed:
    """Utilisation over `updates` updates spread over an epoch, the GEMM peak measured before each."""
    torch.set_num_threads(1)
    hold_memory()
    state = begin(make_task(config), config, CACHE / "none", world)
    stream = cast(Batches, state.batches)
    stride = max(1, len(stream) // (updates + WARM))
    peaks, seconds, flops, tokens, efficiency = [], [], [], [], []
    for number in range(updates + WARM):
        stream.position = number * stride % len(stream)
        reached = gemm_peak(world.device, seconds=0.4)
        batches = take(stream, config.train.accumulate)
        state.step += 1
        start = time.process_time()
        result = update(config, state, world, batches)
        if number >= WARM:
            seconds.append(time.process_time() - start)
            peaks.append(reached)
            flops.append(result.flops / world.size)
            tokens.append(sum(batch.source_tokens for batch in batches) + result.tokens / world.size)
            efficiency.append(result.efficiency)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    used = sum(flops) / sum(seconds)
    peak, by = mean(peak.speed for peak in peaks), mode(peak.by for peak in peaks)
    return Speed(used / peak, peak, by, sum(tokens) / sum(seconds), mean(efficiency), mean(seconds), memory)


def _by_depth(folder: Path, depths: tuple[int, ...]) -> dict[int, float]:
    """CPU seconds of an update against depth, on the same batch."""
    torch.set_num_threads(1)
    result = {}
    for layers in depths:
        sizes = {"model.encoder_layers": layers, "model.decoder_layers": layers, "model.width": 64, "model.ffn": 256}
        config = _config(folder, SETTINGS | sizes | {"train.tokens": 1024})
        state = begin(make_task(config), config, CACHE / "none", World())
        result[layers] = min(_time_update(config, state) for _ in range(4))
    return result


def _fused(folder: Path, widths: tuple[int, ...], layers: int, rounds: int) -> dict[int, Compared]:
    """For each width, CPU seconds of an update as it runs, with torch's operations and with plain modules, and their ratios."""
    result: dict[int, Compared] = {}
    plain = library().removesuffix(COMPILED)
    for width in widths:
        sizes = {"model.encoder_layers": layers, "model.decoder_layers": layers, "model.width": width, "model.ffn": 4 * width}
        rates = dict.fromkeys(("model.dropout", "model.attention_dropout", "model.activation_dropout"), 0.1)
        config = _config(folder, SETTINGS | sizes | rates | {"train.tokens": 1024})
        state = begin(make_task(config), config, CACHE / "none", World())

        def by_torch(config: Config = config, state: State = state) -> None:
            with products_by(plain):
                _time_update(config, state)

        def modules(config: Config = config, state: State = state) -> None:
            with products_by(plain), by_modules():
                _time_update(config, state)

        ways: dict[str, Callable[[], object]] = {"fused": partial(_time_update, config, state)}
        ways |= {"torch's operations": by_torch, "modules": modules}
        seconds = interleaved(ways, rounds)
        base = seconds.pop("fused")
        result[width] = {way: (median(base), median(some), ratio(some, base)) for way, some in seconds.items()}
    return result


def _time_update(config: Config, state: State) -> float:
    state.step += 1
    batches = [peek(state.batches)]
    start = time.process_time()
    update(config, state, World(), batches)
    return time.process_time() - start


def _config(folder: Path, changes: dict[str, Any]) -> Config:
    settings = {"data.path": json.dumps(str(folder)), **changes}
    return read_config(None, [f"{key}={value}" for key, value in settings.items()])


if __name__ == "__main__":
    with joined() as here:
        speed = measure(_config(Path(sys.argv[1]), json.loads(sys.argv[2])), here, int(sys.argv[3]))
        if here.first:
            sys.stdout.write(json.dumps(asdict(speed)) + "\n")
