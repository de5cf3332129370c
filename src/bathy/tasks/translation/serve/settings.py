"""What a server accepts, and how much of it."""

from __future__ import annotations

import ipaddress
import re
from typing import Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from bathy.settings import Settings


class ServeConfig(Settings, section="serve"):
    """Where to listen, limits, and keys."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs API keys."""
    port: NonNegativeInt = Field(default=5000, le=65535)
    """Port to listen on; 0 takes a free one."""
    keys: tuple[str, ...] = Field(default=(), repr=False)
    """API keys, one of which each request must bring; none: no key is asked for."""
    batch: PositiveInt = 64
    """Sentences translated at a time."""
    queue: PositiveInt = 1000
    """Sentences that may wait; a request that would exceed it is answered 503 at once."""
    timeout: PositiveFloat = 60.0
    """Seconds a request may take before it is answered 504."""
    body_timeout: PositiveFloat = 10.0
    """Seconds in which a request's head, and then its body, must arrive."""
    characters: PositiveInt = 20_000
    """Most characters of one request, all texts together."""
    texts: PositiveInt = 256
    """Most texts of one request."""
    origins: tuple[str, ...] = ()
    """Origins whose pages may read the answers in a browser (CORS), such as https://example.org; *: any."""
    connections: PositiveInt = 512
    """Connections held at a time; further ones are answered 503."""

    @model_validator(mode="after")
    def keys_where_needed(self) -> Self:
        """Refuse to listen beyond loopback without keys, and keys that are too short to protect anything."""
        if not self.keys and not self.loopback:
            raise ValueError(f"serve.host is {self.host}, which others can reach; give --api-keys FILE, or listen on 127.0.0.1")
        if any(len(key) < 8 for key in self.keys):
            raise ValueError("an API key has fewer than 8 characters; use longer ones, e.g. from `openssl rand -hex 16`")
        return self

    @field_validator("origins")
    @classmethod
    def origins_as_browsers_send_them(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse what no browser ever sends: scheme and host, and no path."""
        for origin in origins:
            if origin != "*" and not re.fullmatch(r"https?://[^\s/?#@]+", origin):
                raise ValueError(f"an origin is {origin!r}; write it as a browser does, for example https://example.org, or *")
        return origins

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def body(self) -> int:
        """Most bytes of a request's body: every character escaped in the longest way, and some room."""
        return 12 * self.characters + 65_536
