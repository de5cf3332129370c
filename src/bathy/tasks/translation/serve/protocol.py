"""uvicorn's HTTP protocol, with a bound on how long a connection may take to bring a request, and on their number."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

SOON = {"Retry-After": "2"}
"""Header of an answer to who comes too often."""
BUSY = JSONResponse({"error": "too many connections are open; try again soon"}, 503, {**SOON, "Connection": "close"})


def patient(seconds: float, most: int) -> type[H11Protocol]:
    """The protocol that waits so long for a request's head, and for the rest of a body whose request is answered already.

    With more than `most` connections, what a request gets is 503.

    uvicorn waits forever: connections that say nothing, or one byte a minute, would take every place there is. A body that is
    still awaited has its own time limit in the app.
    """

    class Patient(H11Protocol):
        limit: asyncio.TimerHandle | None = None

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.serving, self.app = self.app, self.serve

        async def serve(self, *request: Any) -> None:
            """Answer, unless there are too many connections."""
            await (self.serving if len(self.connections) <= most else BUSY)(*request)

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.bound()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.bound()

        def connection_lost(self, exc: Exception | None) -> None:
            self.unbound()
            super().connection_lost(exc)

        def bound(self) -> None:
            """Let the time run while no request is under way."""
            if self.cycle is not None and not self.cycle.response_complete:
                self.unbound()
            elif self.limit is None:
                self.limit = self.loop.call_later(seconds, self.late)

        def unbound(self) -> None:
            if self.limit is not None:
                self.limit.cancel()
                self.limit = None

        def late(self) -> None:
            if not self.transport.is_closing():
                if self.cycle is None or self.conn.their_state.__name__ == "IDLE":
                    self.refuse(408, "the request did not arrive in time")
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            self.refuse(400, "this is not an HTTP request that can be understood")
            self.transport.close()

        def refuse(self, status: int, message: str) -> None:
            """Answer what never became a request."""
            body = json.dumps({"error": message}).encode()
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
            self.transport.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)

    return Patient
