"""Several engines as one: who is there, who gets what, who is put out, and who comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

from attrs import define, field

from scaleout.core import GenerateRequest, Json
from scaleout.errors import ConfigError, EngineFailed, NotFound
from scaleout.generate.options import RemoteOptions
from scaleout.generate.remote.board import Seat
from scaleout.generate.remote.comparison import Own
from scaleout.generate.remote.faults import Broken, Busy, Fault, Lost, Unreachable
from scaleout.generate.remote.handshake import Introduction, Refused, introduce
from scaleout.generate.remote.link import Link, open_pool
from scaleout.generate.remote.member import Member, name_of
from scaleout.generate.remote.placement import Placement

LOG = logging.getLogger(__name__)

CHECK_SECONDS = 3.0
"""For the answer to a health check. A server that computes on its event loop may well need one."""
SILENT_CHECKS = 3
"""Unanswered checks in a row that put an engine out: one is a hiccup."""
LOST_AFTER = 30.0
"""Seconds of silence after which a stream of an engine that answers no check is given up."""
BROKEN_REQUESTS = 3
"""Errors in a row that put an engine out although it calls itself healthy."""
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 60.0
"""Seconds that such an engine stays out, doubled every time."""
MOST_BUSY = 5.0
"""Seconds that an engine which said that it is full is asked last."""
RETRY_REFUSED = 10.0
"""Seconds between introductions of an engine that was refused."""


class Listener(Protocol):
    """Who counts what happens to engines, by their names."""

    def up(self, engine: str, is_up: bool) -> None: ...
    def ejected(self, engine: str) -> None: ...
    def retried(self, engine: str) -> None: ...
    def began(self, engine: str) -> None: ...
    def first_token(self, engine: str, seconds: float) -> None: ...
    def ended(self, engine: str, outcome: str) -> None: ...


@define(eq=False)
class Fleet:
    """Lives on the event loop that opened it."""

    members: Sequence[Member]
    options: RemoteOptions
    own: Own
    listener: Listener | None = None
    _placement: Placement = field(init=False)
    _watchers: list[asyncio.Task[None]] = field(factory=list)
    _close_pool: Callable[[], Awaitable[None]] | None = None

    def __attrs_post_init__(self) -> None:
        self._placement = Placement([m.name for m in self.members], lambda place: self.members[place].load)

    async def open(self, *, strict: bool) -> None:
        """Introduce every engine once, then watch them. Raises `ConfigError` that names each engine that differs, if `strict`.

        One that cannot be reached is waited for.
        """
        await asyncio.gather(*(self._introduce(member) for member in self.members))
        refused = [f"engine {m.name}: {m.reason}" for m in self.members if m.state == "refused"]
        if strict and refused:
            await self.close()
            raise ConfigError("; ".join(refused))
        self._watchers = [
            asyncio.create_task(self._watch(member), name=f"watch engine {member.name}") for member in self.members
        ]

    async def close(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers = []
        if self._close_pool is not None:
            await self._close_pool()

    # ---------------------------------------------------------------------------------------------- choosing

    def choose(self, request: GenerateRequest, tried: Collection[Member]) -> Member | None:
        """The engine for a request that those in `tried` could not answer; None when there is no other."""
        open_ = [m for m in self.members if m.usable and m not in tried]
        if len(open_) < 2:
            return open_[0] if open_ else None
        now = asyncio.get_running_loop().time()
        free = [m for m in open_ if m.busy_until <= now] or open_
        places = self._placement.order(request.token_ids, request.cache_salt, [m.place for m in free])
        return self.members[places[0]]

    def health(self) -> None:
        """Raises `EngineFailed` when nobody could take a request."""
        if not any(m.usable for m in self.members):
            raise EngineFailed(self.absence(), dead=True)

    def absence(self) -> str:
        """Why nobody can take a request."""
        if any(m.state == "up" for m in self.members):
            return "All engines are drained."
        return "No engine can be reached."

    def find(self, name: str) -> Member:
        for member in self.members:
            if member.name == name:
                return member
        raise NotFound(f"There is no engine {name!r}. Engines: {', '.join(m.name for m in self.members)}.", "name")

    def drain(self, name: str, drained: bool) -> Member:
        """Give an engine no new requests, in no process of this server; or give it some again."""
        member = self.find(name)
        member.seat.board.drain(member.place, drained)
        LOG.info("engine %s is %s", name, "drained: it gets no new requests" if drained else "in use again")
        member.wake.set()
        return member

    def describe(self) -> list[Json]:
        return [member.describe() for member in self.members]

    # ---------------------------------------------------------------------------------------------- judging

    def judge(self, member: Member, fault: Fault) -> None:
        """What a request's fault says about the engine that it was sent to."""
        now = asyncio.get_running_loop().time()
        if isinstance(fault, Busy):
            member.busy_until = now + min(fault.retry_after, MOST_BUSY)
        elif isinstance(fault, Unreachable):
            self._put_out(member, str(fault), lost=True)
        elif isinstance(fault, Broken):
            member.broken += 1
            if member.broken >= BROKEN_REQUESTS:
                member.not_before = now + min(FIRST_PAUSE * 2**member.ejections, LONGEST_PAUSE)
                member.ejections += 1
                member.broken = 0
                self._put_out(member, f"{BROKEN_REQUESTS} requests in a row failed, the last one so: {fault}")
        member.wake.set()

    def praise(self, member: Member) -> None:
        """A request was answered to its end."""
        member.broken = member.ejections = 0

    def _put_out(self, member: Member, reason: str, *, lost: bool = False) -> None:
        """No new requests until a check succeeds. `lost`: requests that it has not begun to answer go elsewhere at once."""
        if member.state == "up":
            LOG.warning("engine %s is out: %s", member.name, reason)
            if self.listener is not None:
                self.listener.ejected(member.name)
        self._set(member, "down", reason)
        if lost:
            for call in list(member.link.calls):
                if not call.started:
                    call.interrupt(f"the engine is gone: {reason}")

    def _set(self, member: Member, state: str, reason: str = "") -> None:
        member.state, member.reason = state, reason  # type: ignore[assignment]
        if self.listener is not None:
            self.listener.up(member.name, state == "up")

    # ---------------------------------------------------------------------------------------------- watching

    async def _watch(self, member: Member) -> None:
        while True:
            pause = RETRY_REFUSED if member.state == "refused" else self.options.health_interval
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await member.wake.wait()
            member.wake.clear()
            try:
                if member.state == "up":
                    await self._check(member)
                elif asyncio.get_running_loop().time() >= member.not_before:
                    await self._introduce(member)
            except Exception:  # a check that fails in a new way must not end all checks
                LOG.exception("checking engine %s failed", member.name)
                self._put_out(member, "its check failed")

    async def _check(self, member: Member) -> None:
        assert member.introduction is not None
        try:
            said = await member.link.get(member.introduction.health_path, CHECK_SECONDS)
        except Unreachable as fault:
            self._put_out(member, str(fault), lost=True)
            return
        except Lost as fault:
            member.silent += 1
            if member.silent >= SILENT_CHECKS:
                self._put_out(member, str(fault), lost=True)
            self._give_up_silent_streams(member)
            return
        member.silent = 0
        if said.status != 200:
            self._put_out(member, f"{member.introduction.health_path} says {said.status}")

    def _give_up_silent_streams(self, member: Member) -> None:
        now = asyncio.get_running_loop().time()
        for call in list(member.link.calls):
            if now - call.heard > LOST_AFTER:
                call.interrupt(f"the engine sent nothing for {LOST_AFTER:g} seconds and answers no check")

    async def _introduce(self, member: Member) -> None:
        try:
            found = await introduce(member.link, self.options.dialect, self.own)
        except Unreachable as fault:
            if member.state != "down":
                LOG.warning("engine %s cannot be reached: %s", member.name, fault)
            self._set(member, "down", str(fault))
            self._give_up_silent_streams(member)
            return
        except Refused as refusal:
            self._refuse(member, [str(refusal)])
            return
        if self.options.check and found.differences:
            self._refuse(member, found.differences)
            return
        for difference in found.differences:
            LOG.warning("engine %s differs, and is used all the same: %s", member.name, difference)
        self._welcome(member, found)

    def _refuse(self, member: Member, reasons: Sequence[str]) -> None:
        reason = "; ".join(reasons)
        if member.reason != reason:
            LOG.error("engine %s is refused: %s", member.name, reason)
        self._set(member, "refused", reason)

    def _welcome(self, member: Member, found: Introduction) -> None:
        if member.introduction is None or member.introduction.facts != found.facts:
            told = f" It does not tell its {', '.join(found.unknown)}." if found.unknown else ""
            what = f"serves {found.facts.model or 'a model'}, driven by {found.dialect.name}"
            LOG.info("engine %s %s.%s", member.name, what, told)
        else:
            LOG.info("engine %s is back", member.name)
        member.introduction = found
        member.silent = member.broken = 0
        member.busy_until = 0.0
        self._set(member, "up")


def gather_fleet(options: RemoteOptions, own: Own, seat: Seat, listener: Listener | None) -> Fleet:
    """The engines of `options.urls`, none of them asked yet. Called on the event loop that will use them."""
    pool = open_pool(options)
    members = [
        Member(place, name_of(url), Link(url.rstrip("/"), options, pool), seat)
        for place, url in enumerate(options.urls)
    ]
    return Fleet(members, options, own, listener, close_pool=pool.close)
