"""One engine as the fleet sees it: where it is, what it said about itself, and why it gets requests or none."""

from __future__ import annotations

import asyncio
from typing import Literal
from urllib.parse import urlsplit

from attrs import define, field

from scaleout.core import Json
from scaleout.generate.remote.board import Seat
from scaleout.generate.remote.handshake import Introduction
from scaleout.generate.remote.link import Link

State = Literal["unknown", "up", "down", "refused"]


@define(eq=False)
class Member:
    """`reason` says why it is not up. `not_before` and `busy_until` are times on the event loop's clock.

    `silent`: checks in a row without an answer. `broken`: requests in a row that ended with an error of its own. `ejections`: how often
    errors put it out since it last finished a request.
    """

    place: int
    name: str
    link: Link
    seat: Seat
    state: State = "unknown"
    reason: str = "not asked yet"
    introduction: Introduction | None = None
    silent: int = 0
    broken: int = 0
    ejections: int = 0
    not_before: float = 0.0
    busy_until: float = 0.0
    wake: asyncio.Event = field(factory=asyncio.Event)

    @property
    def drained(self) -> bool:
        return self.seat.board.is_drained(self.place)

    @property
    def usable(self) -> bool:
        return self.state == "up" and not self.drained

    @property
    def load(self) -> int:
        """Choices that run there, of all processes of this server."""
        return self.seat.board.load(self.place)

    def describe(self) -> dict[str, Json]:
        """For `GET /engines`."""
        known = self.introduction
        return {
            "name": self.name,
            "url": self.link.base,
            "state": self.state,
            "reason": None if self.state == "up" else self.reason,
            "drained": self.drained,
            "in_flight": self.load,
            "dialect": None if known is None else known.dialect.name,
            "model": None if known is None else known.facts.model,
            "not_compared": None if known is None else list(known.unknown),
        }


def name_of(url: str) -> str:
    """Host and port, and the path where there is one."""
    parts = urlsplit(url)
    return (parts.netloc.rpartition("@")[2] + parts.path.rstrip("/")).replace("/", "~")
