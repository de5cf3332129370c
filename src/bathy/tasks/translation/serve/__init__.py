"""`bathy serve`: models behind LibreTranslate's API.

texts     a text or HTML → sentences, and back
engines   sentences → translations, by bathy or CTranslate2
batcher   one bounded queue and one thread for each model: what waits is translated together
app       HTTP: requests checked, answered, counted
protocol  connections that bring no request in time are closed
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from bathy import console
from bathy.errors import ConfigError, require
from bathy.tasks.translation.serve.batcher import Batcher
from bathy.tasks.translation.serve.engines import Engine, open_engine
from bathy.tasks.translation.serve.settings import ServeConfig

GRACE = 30
"""Seconds that requests under way have to finish after SIGTERM."""


def serve(folders: Sequence[Path], config: ServeConfig, threads: int = 0, **decode: object) -> None:
    """Answer requests until SIGTERM or Ctrl-C; requests under way are finished then. `decode` changes search settings."""
    uvicorn = require("uvicorn", "serve")
    require("starlette", "serve")
    require("python_multipart", "serve")
    from bathy.tasks.translation.serve.app import Server
    from bathy.tasks.translation.serve.protocol import patient

    listener = _listen(config)
    engines = open_engines(folders, config, threads, **decode)
    batchers = {pair: Batcher(engine, config.batch, config.queue) for pair, engine in engines.items()}
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    options = {"log_level": "warning", "server_header": False, "timeout_graceful_shutdown": GRACE, "access_log": False}
    options |= {"http": patient(config.body_timeout, config.connections), "ws": "none", "lifespan": "on"}
    server = uvicorn.Server(uvicorn.Config(Server(batchers, config).app(), **options))
    # also before uvicorn has handlers of its own; it raises the signal again once all is finished: exit code 0 then
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    listener.listen(config.connections)  # from here on a client can connect
    console.err.print(f"serving {', '.join(f'{a} → {b}' for a, b in engines)} on http://{shown}:{port}/", highlight=False)
    server.run(sockets=[listener])


def open_engines(folders: Sequence[Path], config: ServeConfig, threads: int, **decode: object) -> dict[tuple[str, str], Engine]:
    """Language pair to the engine that translates it."""
    found: dict[tuple[str, str], Engine] = {}
    for folder in folders:
        engine = open_engine(folder, config.batch, threads or len(os.sched_getaffinity(0)), **decode)
        if (pair := (engine.source, engine.target)) in found:
            raise ConfigError(f"{folder} translates {pair[0]} to {pair[1]}, as another model does; serve one of them")
        found[pair] = engine
    return found


def _listen(config: ServeConfig) -> socket.socket:
    """A socket on the address, before anything is loaded."""
    try:
        family, *_, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(f"{config.host}, port {config.port} cannot be listened on: {error.strerror or error}") from None
    return listener
