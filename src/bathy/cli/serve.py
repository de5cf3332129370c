"""`bathy serve`: translation over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    model: Annotated[list[Path], typer.Argument(help="Run, model or CTranslate2 folder; several for several language pairs.")],
    host: Annotated[str, typer.Option(help="Address to listen on; beyond loopback it needs --api-keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 5000,
    api_keys: Annotated[Path | None, typer.Option(help="File with one API key per line; requests then need one.")] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Origin whose pages may call the server from a browser; * for any.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept; default: as the model says.")] = None,
    batch: Annotated[int, typer.Option(help="Sentences translated at a time.")] = 64,
    queue: Annotated[int, typer.Option(help="Sentences that may wait; beyond, requests are answered 503.")] = 1000,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 60.0,
    characters: Annotated[int, typer.Option(help="Most characters of a request.")] = 20_000,
    precision: Annotated[str | None, typer.Option(help="float32, float16 or bfloat16 (bathy's own models).")] = None,
    threads: Annotated[int, typer.Option(min=0, max=1024, help="Threads for the products; 0: all cores.")] = 0,
) -> None:
    """Serve models over HTTP with LibreTranslate's API: /translate, /languages, /detect, /health, /metrics, and a page at /.

    Requests that arrive together are translated together. SIGTERM and Ctrl-C finish what is under way.

    Example: bathy serve models/de-en models/en-de --port 5000
    """
    import torch

    from bathy.errors import ConfigError
    from bathy.tasks.lines import read_lines
    from bathy.tasks.translation.serve import serve as run
    from bathy.tasks.translation.serve.settings import ServeConfig

    keys = tuple(line.strip() for line in read_lines(api_keys) if line.strip()) if api_keys else ()
    if api_keys and not keys:
        raise ConfigError(f"{api_keys} holds no API key; write one per line")
    if threads:
        torch.set_num_threads(threads)
    limits = ServeConfig(
        host=host, port=port, keys=keys, origins=tuple(allow_origin or ()),
        batch=batch, queue=queue, timeout=timeout, characters=characters,
    )  # fmt: skip
    run(model, limits, threads, beam=beam, precision=precision)
