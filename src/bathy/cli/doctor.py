"""`bathy doctor`: what this machine has, and what is missing for which command."""

from __future__ import annotations

from typing import Annotated

import typer

EXTRAS: dict[str, tuple[list[str], str]] = {
    "translation": (["sacremoses", "tokenizers", "sacrebleu", "sentencepiece"], "prepare, train, translate, score, demo"),
    "language": (["tokenizers"], "prepare, train and sample language models"),
    "clinic": (["altair", "vl_convert", "jinja2"], "clinic, watch, postmortem, ladder, reproduce, demo: figures and pages"),
    "sweep": (["optuna", "psycopg"], "sweep"),
    "tensorboard": (["tensorboard"], "train.loggers = tensorboard"),
    "wandb": (["wandb"], "train.loggers = wandb"),
    "export": (["ctranslate2", "transformers"], "export --to marian or ctranslate2"),
    "serve": (["starlette", "uvicorn", "python_multipart", "jinja2"], "serve"),
}
"""Extra to its modules and to the commands that need it."""


def doctor(
    strict: Annotated[bool, typer.Option(help="Exit with code 1 if anything is missing.")] = False,
) -> None:
    """Show versions, devices, free disk and memory, and what is missing for which command.

    Example: bathy doctor
    """
    from bathy import console

    console.out.print(console.table("machine", ["what", "found"], _machine()))
    rows = [(extra, ", ".join(modules), commands, _state(modules, extra)) for extra, (modules, commands) in EXTRAS.items()]
    console.out.print(console.table("extras", ["extra", "packages", "for", "state"], rows))
    missing = [row for row in rows if row[3] != "ok"]
    console.out.print("Everything is there." if not missing else f"{len(missing)} of {len(rows)} extras are incomplete.")
    raise typer.Exit(1 if strict and missing else 0)


def _machine() -> list[tuple[str, str]]:
    """Versions and what there is to compute with."""
    import os
    import platform
    import shutil
    from importlib.metadata import version

    import torch

    from bathy.kernels import compiled
    from bathy.kernels.library import described, library

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    distributed = torch.distributed.is_available()
    return [
        ("bathy", version("bathy")),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        ("cores", str(os.cpu_count())),
        ("float32 products of training on the CPU", described(library())),
        ("compiled kernels", compiled.missing() or "built"),
        ("GPUs", ", ".join(gpus) or "none: everything runs on the CPU"),
        (
            "many ranks",
            "torchrun with " + ("NCCL" if gpus else "gloo") if distributed else "this torch has no distributed part",
        ),
        ("memory free", _memory()),
        ("disk free here", f"{shutil.disk_usage('.').free / 1e9:.0f} GB"),
    ]


def _memory() -> str:
    """Free memory as the kernel tells it."""
    from pathlib import Path

    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return "unavailable"
    fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return f"{int(fields['MemAvailable'].split()[0]) / 1e6:.0f} GB"


def _state(modules: list[str], extra: str) -> str:
    """'ok', or the command that brings what is missing."""
    from importlib.util import find_spec

    missing = [module for module in modules if find_spec(module) is None]
    return "ok" if not missing else f"no {', '.join(missing)}: pip install 'bathy[{extra}]'"
