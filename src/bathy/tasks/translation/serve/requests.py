"""What a client sends, checked: bodies as JSON or forms, fields by type, everything else refused with one line."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

CHARSET = re.compile(r";\s*+charset\s*+=\s*+(?!\"?utf-?8\"?\s*+(?:;|\Z))", re.I)
"""A content type's encoding, where that is not UTF-8."""


class Refused(Exception):  # noqa: N818, it names what happened
    """A request that cannot be answered as it is: status and one line for the client."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


@dataclass(frozen=True)
class Wish:
    """A checked request to translate."""

    texts: list[str]
    several: bool
    source: str
    target: str
    markup: bool
    alternatives: int
    detected: bool
    """Whether the source language was left to the server."""


def content_type(header: str) -> str:
    """What kind of body a request says it has; one in another encoding than UTF-8 is refused."""
    if CHARSET.search(header):
        raise Refused(415, "the body must be in UTF-8")
    return header.partition(";")[0].strip().lower()


def read_texts(fields: Mapping[str, Any]) -> tuple[list[str], bool]:
    """The texts, and whether they came as a list."""
    q = fields.get("q")
    if q is None:
        raise Refused(400, "q is missing: the text to translate, or a list of texts")
    texts = q if isinstance(q, list) else [q]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Refused(400, "q must be a text or a list of texts")
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise Refused(400, "q holds half of a surrogate pair, which is not a character")
    return texts, isinstance(q, list)


def read_choice(fields: Mapping[str, Any], name: str, known: Sequence[str], default: str | None) -> str:
    """The value of a field that is one of the known."""
    value = fields.get(name, default)
    if value is None:
        raise Refused(400, f"{name} is missing; known: {', '.join(known)}")
    if not isinstance(value, str) or value not in known:
        raise Refused(400, f"{name} is not one of {', '.join(known)}")
    return value


def read_count(fields: Mapping[str, Any], name: str) -> int:
    """The value of a field that is a small number; 0 where it is missing."""
    value = fields.get(name, 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 4:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100:
        raise Refused(400, f"{name} must be a whole number from 0 to 100")
    return value


def parse_json(body: bytes) -> dict[str, Any]:
    """The fields of a JSON object."""
    try:
        fields = json.loads(body.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise Refused(400, "the body is not JSON in UTF-8") from None
    if not isinstance(fields, dict):
        raise Refused(400, "the body is JSON, but not an object")
    return fields


def parse_form(body: bytes) -> dict[str, Any]:
    """The fields of a form; q may come several times."""
    try:
        fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except ValueError:
        raise Refused(400, "the body is not a form in UTF-8") from None
    return {name: values if name == "q" and len(values) > 1 else values[0] for name, values in fields.items()}


async def parse_multipart(request: Request, body: bytes) -> dict[str, Any]:
    """The fields of a multipart form without files."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        body.decode("utf-8")  # Starlette reads as Latin-1 what is not
        form = await MultiPartParser(
            request.headers, stream(), max_files=0, max_fields=1000, max_part_size=len(body) + 1
        ).parse()
    except (MultiPartException, ValueError, KeyError):
        raise Refused(400, "the body is not a multipart form in UTF-8 without files") from None
    if not body.rstrip().endswith(b"--"):
        raise Refused(400, "the body is a multipart form without its end")
    return {name: values if len(values := form.getlist(name)) > 1 else values[0] for name in form}
