"""A process that has imported everything once and runs each command in a fork of itself: a start costs milliseconds.

Reads requests as JSON lines (args, cwd, stdout, stderr, limits), answers {"pid": …} when the command runs and {"code": …}
when it is over. Commands run as a user's would: through `bathy.cli.main`, with their own files as output.
"""

import json
import os
import resource
import sys
from importlib import import_module
from typing import Any

import torch

from bathy.cli import main

OURS = ["lab.sweep.train", "lab.ladder.ladder", "clinic.examination", "train.loop", "tasks.verify"]
OURS += [f"tasks.language.{name}" for name in ("task", "prepare", "sample", "score", "export", "overview")]
OURS += [f"tasks.translation.{name}" for name in ("task", "prepare", "translate", "export", "distil", "serve.app", "overview")]
THEIRS = [
    "sacremoses",
    "tokenizers",
    "sacrebleu",
    "tomlkit",
    "filelock",
    "optuna",
    "alembic.command",
    "torch._dynamo",
    "uvicorn",
]
"""What commands import when they need it: a second for each of thousands of starts."""

SHARD = 100
"""Lines per shard, so that a small corpus has many."""


def child(request: dict[str, Any]) -> int:
    """Run one command in this fork; returns its exit code."""
    os.setpgid(0, 0)
    os.chdir(request["cwd"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request.get("env", {}))
    sys.argv = ["bathy", *request["args"]]
    for kind, value in request.get("limits", {}).items():
        resource.setrlimit(getattr(resource, kind), (value, value))
    try:
        main(request["args"])
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(bool(left.code))
    return 0


def serve() -> None:
    """Answer requests until the input ends."""
    torch.set_num_threads(1)
    for name in [*(f"bathy.{module}" for module in OURS), *THEIRS]:
        import_module(name)
    for name in ("inputs", "clean"):
        module: Any = import_module(f"bathy.tasks.translation.prepare.{name}")
        module.SHARD = SHARD
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = child(request)
                sys.stdout.flush()
            finally:
                os._exit(code)
        answers.write(json.dumps({"pid": pid}) + "\n")
        answers.flush()
        _, status = os.waitpid(pid, 0)
        answers.write(json.dumps({"code": os.waitstatus_to_exitcode(status)}) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
