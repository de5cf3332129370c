"""The page over HTTP, for this machine only: nothing but two addresses that are read."""

from __future__ import annotations

import json
import signal
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bathy import console
from bathy.errors import ConfigError
from bathy.lab.watch.page import Watch

HOST = "127.0.0.1"
NAMES = {"127.0.0.1", "localhost"}
"""What a browser on this machine calls it; any other name is another site's, pointed here (DNS rebinding)."""
POLICY = (  # Vega compiles its expressions, hence unsafe-eval; nothing can be loaded from or sent to anywhere else
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'"
)


def serve(watch: Watch, port: int = 0, minutes: float = 0.0) -> None:
    """Serve the page until Ctrl-C, SIGTERM, or so many minutes are over (0: never)."""
    try:
        server = ThreadingHTTPServer((HOST, port), handler(watch))
    except OSError as error:
        raise ConfigError(
            f"port {port} cannot be listened on: {error.strerror or error}; choose another --port, or 0"
        ) from None
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, _interrupt)
    end = threading.Timer(60 * minutes, server.shutdown)
    if minutes:
        end.daemon = True
        end.start()
    console.err.print(f"watching on http://{HOST}:{server.server_port}/ (Ctrl-C stops)", highlight=False)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        end.cancel()
        server.server_close()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def handler(watch: Watch) -> type[BaseHTTPRequestHandler]:
    """What answers a request."""

    class Handler(BaseHTTPRequestHandler):
        """GET / is the page, GET /state what changes on it."""

        server_version, sys_version = "bathy", ""

        def do_GET(self) -> None:
            if self.headers.get("Host", "").rpartition(":")[0] not in NAMES:
                self.answer(HTTPStatus.FORBIDDEN, "text/plain", "this server answers to 127.0.0.1 and localhost only")
            elif self.path in ("/", "/state"):
                self.answer_with(self.path)
            else:
                self.answer(HTTPStatus.NOT_FOUND, "text/plain", "there is nothing here; the page is at /")

        def answer_with(self, path: str) -> None:
            """The page, or its state; what goes wrong is said, and the next request is answered."""
            try:
                kind, text = ("text/html", watch.page(live=True)) if path == "/" else ("application/json", _json(watch.state()))
            except Exception as error:  # a run's folder may hold anything; the server goes on, and the person is told
                console.warn(f"the page could not be made: {type(error).__name__}: {error}")
                self.answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", "the page could not be made; see the terminal")
                return
            self.answer(HTTPStatus.OK, kind, text)

        def answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            """One answer, not to be kept."""
            body = text.encode()
            self.send_response(status)
            headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), "Cache-Control": "no-store"}
            for name, value in {**headers, "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not news."""

    return Handler


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
