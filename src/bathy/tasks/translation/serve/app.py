"""The HTTP application: LibreTranslate's API over batchers, as a Starlette app.

Whatever a client sends is answered: 4xx with one line in `error` for what it got wrong, 503 with Retry-After when the queue is
full, 504 after the time limit. No answer holds a traceback or a path.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from bathy.pages import render_page
from bathy.tasks.translation.languages import language_name
from bathy.tasks.translation.serve.batcher import Batcher, QueueFull
from bathy.tasks.translation.serve.engines import Engine
from bathy.tasks.translation.serve.metrics import Metrics
from bathy.tasks.translation.serve.protocol import SOON
from bathy.tasks.translation.serve.requests import (
    Refused,
    Wish,
    content_type,
    parse_form,
    parse_json,
    parse_multipart,
    read_choice,
    read_count,
    read_texts,
)
from bathy.tasks.translation.serve.settings import ServeConfig
from bathy.tasks.translation.serve.texts import Piece, join, split_html, split_text

MOST_TOKENS = 8
"""Tokens that one character becomes at most: a quotation mark that Moses escapes, letter by letter."""
log = logging.getLogger("bathy.serve")
Handler = Callable[[Request], Awaitable[Response]]


class Server:
    """The handlers, and what they share."""

    def __init__(self, batchers: Mapping[tuple[str, str], Batcher], config: ServeConfig) -> None:
        self.batchers, self.config, self.metrics = dict(batchers), config, Metrics()
        self.sources = list(dict.fromkeys(source for source, _ in self.batchers))

    def app(self) -> Starlette:
        """The application; it ends its batchers when it stops."""
        page = render_page("bathy.tasks.translation.serve", "page.html")

        async def home(request: Request) -> Response:
            return HTMLResponse(page)

        async def health(request: Request) -> Response:
            return JSONResponse({"status": "ok"})

        @asynccontextmanager
        async def lifespan(app: Starlette) -> Any:
            yield
            for batcher in self.batchers.values():
                await asyncio.to_thread(batcher.close)

        both = ["GET", "POST"]  # LibreTranslate's clients ask for languages either way
        routes = [
            Route("/", self.guard(home), methods=["GET"]),
            Route("/health", self.guard(health), methods=["GET"]),
            Route("/languages", self.guard(self.languages), methods=both),
            Route("/frontend/settings", self.guard(self.settings), methods=["GET"]),
            Route("/metrics", self.guard(self.show_metrics), methods=["GET"]),
            Route("/detect", self.guard(self.detect), methods=["POST"]),
            Route("/translate", self.guard(self.translate), methods=["POST"]),
        ]
        cors = [Middleware(CORSMiddleware, allow_origins=self.config.origins, allow_methods=both, allow_headers=["*"])]
        middleware = cors if self.config.origins else []
        app = Starlette(
            routes=routes, lifespan=lifespan, middleware=middleware, exception_handlers={HTTPException: _plain_error}
        )
        app.router.redirect_slashes = False  # such an answer would repeat the Host that a client claims
        return app

    def guard(self, handler: Handler) -> Handler:
        """The handler with every failure turned into an answer, and counted."""

        async def guarded(request: Request) -> Response:
            start = time.monotonic()
            try:
                response = await handler(request)
            except Refused as refused:
                response = JSONResponse({"error": refused.message}, refused.status, refused.headers)
            except ClientDisconnect:
                response = JSONResponse({"error": "the client has gone"}, 400)
            except Exception:
                log.exception("%s failed", request.url.path)
                response = JSONResponse({"error": "the server failed on this request"}, 500)
            self.metrics.record(request.url.path, response.status_code, time.monotonic() - start)
            return response

        return guarded

    async def languages(self, request: Request) -> Response:
        """The languages, and what each can be translated to."""
        codes = dict.fromkeys(code for pair in self.batchers for code in pair)
        targets = {code: [target for source, target in self.batchers if source == code] for code in codes}
        return JSONResponse([{"code": code, "name": language_name(code), "targets": targets[code]} for code in codes])

    async def settings(self, request: Request) -> Response:
        """What LibreTranslate's front ends ask before they begin."""
        source, target = next(iter(self.batchers))
        named = {side: {"code": code, "name": language_name(code)} for side, code in (("source", source), ("target", target))}
        limits = {"charLimit": self.config.characters, "batchLimit": self.config.texts, "frontendTimeout": 500}
        absent = {"suggestions": False, "filesTranslation": False, "supportedFilesFormat": []}
        keys = dict.fromkeys(("apiKeys", "keyRequired"), bool(self.config.keys))
        return JSONResponse({**keys, "language": named, **limits, **absent})

    async def show_metrics(self, request: Request) -> Response:
        """Counters for Prometheus; with keys, only for who has one."""
        self.check_key(request, {})
        waiting = {f"{source}-{target}": batcher.sentences for (source, target), batcher in self.batchers.items()}
        return PlainTextResponse(self.metrics.render(waiting), media_type="text/plain; version=0.0.4")

    async def detect(self, request: Request) -> Response:
        """The language of a text, where only one can be meant; its confidence, 0, says that it was not measured."""
        fields = await self.read(request)
        read_texts(fields)
        if len(self.sources) != 1:
            raise Refused(501, f"this server cannot detect languages; name one of {', '.join(self.sources)} as source")
        return JSONResponse([{"language": self.sources[0], "confidence": 0.0}])

    async def translate(self, request: Request) -> Response:
        """Translations of one text or of several."""
        wish = self.understand(await self.read(request))
        batcher = self.batchers[wish.source, wish.target]
        split = split_html if wish.markup else split_text
        pieces = [split(text) for text in wish.texts]
        lines = [piece.text for parts in pieces for piece in parts if piece.translate]
        self.check_sentences(lines, batcher.engine)
        try:
            async with asyncio.timeout(self.config.timeout):
                found = await batcher.translate(lines, 1 + wish.alternatives)
        except QueueFull:
            raise Refused(503, "too many requests are waiting; try again soon", SOON) from None
        except TimeoutError:
            raise Refused(504, f"the translation took longer than {self.config.timeout:g} seconds; send less text") from None
        self.metrics.sentences += len(lines)
        self.metrics.characters += sum(map(len, wish.texts))
        return JSONResponse(_answer(wish, pieces, found))

    async def read(self, request: Request) -> dict[str, Any]:
        """The fields of a JSON or form-encoded body, once its size, arrival and key are right."""
        kind = content_type(request.headers.get("content-type", ""))
        body = await self._body(request)
        if kind == "application/json":
            fields = parse_json(body)
        elif kind in ("application/x-www-form-urlencoded", ""):
            fields = parse_form(body)
        elif kind == "multipart/form-data":
            fields = await parse_multipart(request, body)
        else:
            raise Refused(415, "the content type is neither application/json nor a form")
        fields = parse_form(request.scope["query_string"]) | fields  # LibreTranslate takes both
        self.check_key(request, fields)
        return fields

    async def _body(self, request: Request) -> bytes:
        length = request.headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > self.config.body:
            raise Refused(413, f"the body is larger than {self.config.body} bytes")
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.config.body_timeout):
                async for part in request.stream():
                    size += len(part)
                    if size > self.config.body:
                        raise Refused(413, f"the body is larger than {self.config.body} bytes")
                    parts.append(part)
        except TimeoutError:
            raise Refused(408, "the body did not arrive in time", {"Connection": "close"}) from None
        return b"".join(parts)

    def check_key(self, request: Request, fields: Mapping[str, Any]) -> None:
        """Refuse a request without one of the keys, if there are any."""
        if not self.config.keys:
            return
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = str(fields.get("api_key") or request.query_params.get("api_key") or bearer).encode(errors="replace")
        if not sum(hmac.compare_digest(given, key.encode()) for key in self.config.keys):  # all are compared: no timing
            raise Refused(403, "this server needs an API key: send it as api_key" if not given else "invalid API key")

    def understand(self, fields: Mapping[str, Any]) -> Wish:
        """The request, checked."""
        texts, several = read_texts(fields)
        if len(texts) > self.config.texts:
            raise Refused(400, f"there are {len(texts)} texts; a request may have {self.config.texts}")
        if (size := sum(map(len, texts))) > self.config.characters:
            raise Refused(400, f"the text has {size} characters; a request may have {self.config.characters}")
        markup = read_choice(fields, "format", ("text", "html"), "text") == "html"
        target = read_choice(fields, "target", tuple(dict.fromkeys(target for _, target in self.batchers)), None)
        source = read_choice(fields, "source", ("auto", *self.sources), None)
        detected = source == "auto"
        if detected:
            possible = [source for source, to in self.batchers if to == target]
            if len(possible) != 1:
                raise Refused(400, f"this server cannot detect languages; name one of {', '.join(possible)} as source")
            source = possible[0]
        if (source, target) not in self.batchers:
            raise Refused(400, f"{source} cannot be translated to {target} here; see /languages")
        most = self.batchers[source, target].engine.most
        return Wish(texts, several, source, target, markup, min(read_count(fields, "alternatives"), most - 1), detected)

    def check_sentences(self, lines: Sequence[str], engine: Engine) -> None:
        """Refuse more sentences than ever fit the queue, and one that the model cannot read to its end."""
        if len(lines) > self.config.queue:
            raise Refused(400, f"the text has {len(lines)} sentences; a request may have {self.config.queue}")
        for line in lines:
            if len(line) * MOST_TOKENS < engine.longest:  # short beyond doubt: not counted, for speed
                continue
            if (tokens := len(engine.codec.encode([line])[0])) > engine.longest:
                raise Refused(
                    400, f"a sentence has {tokens} tokens; this model reads {engine.longest}: break it up ({line[:30]!r} …)"
                )


def _answer(wish: Wish, pieces: Sequence[Sequence[Piece]], found: Sequence[Sequence[str]]) -> dict[str, Any]:
    """What LibreTranslate answers: one text for one, a list for a list."""
    escape = (lambda text: html.escape(text, False)) if wish.markup else str
    ranked = [[many[min(rank, len(many) - 1)] for many in found] for rank in range(1 + wish.alternatives)]
    columns = []
    for best in ranked:
        lines = iter(best)
        columns.append([join(parts, lines, escape) for parts in pieces])
    texts, others = columns[0], [list(dict.fromkeys(column[i] for column in columns[1:])) for i in range(len(pieces))]
    result: dict[str, Any] = {"translatedText": texts if wish.several else texts[0]}
    if wish.detected:
        found_language = {"language": wish.source, "confidence": 0.0}
        result["detectedLanguage"] = [found_language] * len(texts) if wish.several else found_language
    if wish.alternatives:
        others = [[other for other in many if other != text] for many, text in zip(others, texts, strict=True)]
        result["alternatives"] = others if wish.several else others[0]
    return result


async def _plain_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = {404: "there is no such path; see /languages and /translate", 405: "this path does not take that method"}
    return JSONResponse({"error": message.get(status, "the request cannot be answered")}, status)
