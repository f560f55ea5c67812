"""Responses that may be asked for again, and conversations that go on from them: bounded, in memory, gone with the process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from attrs import define, field

from scaleout.codec import dumps, loads
from scaleout.config import ModeConfig
from scaleout.core import Json
from scaleout.errors import BadRequest, NotFound, Overloaded
from scaleout.pipeline.tape import Tape

Owner = str
"""Whose response it is: what one key has stored, no other key finds."""

Turns = tuple[bytes, ...]
"""A conversation: what was asked, what was said, and so on, each turn the JSON of its items. One that goes on shares the turns before."""


@define(eq=False)
class Stored:
    """One response as bytes, which are a tenth of what its objects would take.

    `payload` is the response as it was sent. `turns` are what it answers, its own input at the end; `said` is the turn that it adds, None
    while nothing can go on from it. `work` makes a response that was asked for in the background, `tape` is its stream.
    """

    payload: bytes
    turns: Turns = ()
    said: bytes | None = None
    work: asyncio.Task[None] | None = None
    tape: Tape | None = None
    counted: int = 0
    """What the store has counted for it."""

    @property
    def size(self) -> int:
        """Bytes, turns that others share included."""
        tape = 0 if self.tape is None else self.tape.size
        return len(self.payload) + len(self.said or b"") + sum(map(len, self.turns)) + tape

    @property
    def response(self) -> dict[str, Json]:
        value: dict[str, Json] = loads(self.payload)
        return value


@define
class ResponseStore:
    """At most `max_count` responses of `max_bytes` together; whichever was used longest ago goes first.

    `closed`: why nothing is kept here, as a sentence for clients; None where responses are kept.
    """

    max_count: int
    max_bytes: int
    closed: str | None = None
    taken: int = 0
    _stored: dict[tuple[Owner, str], Stored] = field(factory=dict)

    def __len__(self) -> int:
        return len(self._stored)

    def find(self, owner: Owner, response_id: str, param: str = "response_id") -> Stored:
        """Raises `NotFound`, which names `param`."""
        stored = self._stored.pop((owner, response_id), None)
        if stored is None:
            raise not_found(response_id, param, self.closed)
        self._stored[owner, response_id] = stored
        return stored

    def conversation(self, owner: Owner, response_id: str) -> Turns:
        """What `previous_response_id` stands for. Raises `NotFound`, and `BadRequest` for a response that has no end."""
        stored = self.find(owner, response_id, "previous_response_id")
        if stored.said is None:
            raise BadRequest(
                f"Response '{response_id}' is {stored.response['status']}: nothing can go on from it.",
                "previous_response_id",
            )
        return (*stored.turns, stored.said)

    def put(self, owner: Owner, response_id: str, stored: Stored) -> bool:
        """Keep a response, in place of an older one of the same id. False: it alone is larger than everything may be.

        Raises `Overloaded` where all places are taken by responses that are still being made.
        """
        self.drop(owner, response_id)
        if self.closed or stored.size > self.max_bytes:
            return False
        self._make_room(self.max_count - 1, stored.size)
        self._stored[owner, response_id] = stored
        stored.counted = stored.size
        self.taken += stored.counted
        return True

    def record(self, stored: Stored, frame: bytes) -> None:
        """Add to the tape of a response that is being made. Raises `Overloaded` as `put` does."""
        assert stored.tape is not None
        self._make_room(self.max_count, len(frame))
        stored.tape.add(frame)
        stored.counted += len(frame)
        self.taken += len(frame)

    def _make_room(self, count: int, size: int) -> None:
        """Forget what was used longest ago until no more than `count` responses are left, and `size` bytes are free."""
        if len(self._stored) <= count and self.taken + size <= self.max_bytes:
            return
        idle = iter([key for key, one in self._stored.items() if one.work is None])
        while len(self._stored) > count or self.taken + size > self.max_bytes:
            key = next(idle, None)
            if key is None:
                raise Overloaded("Too many responses are being made in the background")
            self.drop(*key)

    def drop(self, owner: Owner, response_id: str) -> bool:
        """Forget a response, and end the work on it. Returns whether there was one."""
        stored = self._stored.pop((owner, response_id), None)
        if stored is None:
            return False
        self.taken -= stored.counted
        if stored.work is not None:
            stored.work.cancel()
        return True

    async def close(self) -> None:
        """End what is still being made."""
        works = [stored.work for stored in self._stored.values() if stored.work is not None]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)


def open_store(config: ModeConfig) -> ResponseStore:
    """The store of one process. Several processes would each know a part of the responses, so they keep none."""
    limits, closed = config.limits, None
    if config.workers > 1:
        closed = f"This server keeps no responses: it is {config.workers} processes, and no two know the same; --workers 1 keeps them."
    elif not limits.max_stored_responses:
        closed = "This server keeps no responses: --max-stored-responses is 0."
    return ResponseStore(limits.max_stored_responses, limits.max_stored_bytes, closed)


def not_found(response_id: str, param: str, closed: str | None = None) -> NotFound:
    """In the words of the reference peer; where nothing is kept at all, with the reason."""
    error = NotFound(f"Response with id '{response_id}' not found.{'' if closed is None else ' ' + closed}", param)
    error.type = "invalid_request_error"
    return error


def write_asked(own: Json) -> bytes:
    """The turn that is a response's own input."""
    return dumps([{"type": "message", "role": "user", "content": own}] if isinstance(own, str) else own)


def write_said(output: Sequence[Json]) -> bytes:
    """The turn that a response adds to its conversation.

    A call that was cut is left out: it has no arguments that anybody could answer, and no template could show it.
    """
    return dumps([item for item in output if not (item["type"].endswith("_call") and item["status"] != "completed")])


def read_turns(turns: Turns) -> list[Json]:
    """All items of a conversation. Long ones are work for a thread, which lets others in between two turns."""
    return [item for turn in turns for item in loads(turn)]
