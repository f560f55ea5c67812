"""API keys: whether a request may see anything beyond the health routes."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from aiohttp import web

from scaleout.errors import Unauthorized
from scaleout.routes.keys import CONFIG

OPEN_PATHS = frozenset(("/health", "/live", "/ready", "/ping"))
"""What a probe without a key has to reach. They say nothing but alive or not."""


class KeyRing:
    """The server's keys, as digests: equal length makes the comparison's time say nothing about a key."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def check(self, request: web.Request) -> None:
        """Raises `Unauthorized` unless one of the keys is in `Authorization: Bearer` or `x-api-key`."""
        headers = request.headers
        scheme, _, bearer = headers.get("Authorization", "").partition(" ")
        offered = [headers.get("x-api-key", "")]
        if scheme.lower() == "bearer":
            offered.append(bearer.strip())
        # No shortcut: every key is compared with everything offered, whether or not one has matched already.
        matches = [hmac.compare_digest(_digest(one), digest) for one in offered for digest in self._digests]
        if not any(matches):
            raise Unauthorized("A valid API key is needed: send Authorization: Bearer KEY, or x-api-key: KEY")


def owner_of(request: web.Request) -> str:
    """Names the holder of the key that was sent, without telling the key; "" where the server has none."""
    if not request.app[CONFIG].api_keys:
        return ""
    bearer = request.headers.get("Authorization", "").partition(" ")[2].strip()
    return _digest(request.headers.get("x-api-key") or bearer).hex()


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()
