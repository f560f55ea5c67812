"""Other servers as the engine: token ids go out over HTTP, deltas come back as they are made."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from secrets import token_hex
from typing import TYPE_CHECKING

from attrs import define, evolve, field

from scaleout.core import GenerateRequest, TokenDelta
from scaleout.errors import ConfigError, EngineFailed, NotSupported, Overloaded, RequestError
from scaleout.generate.admission import check_ids, check_length, check_params, check_repetition
from scaleout.generate.attendance import Attendance
from scaleout.generate.engine import Engine, Over
from scaleout.generate.merging import merge
from scaleout.generate.options import EngineOptions, EngineStats, ModelSource, RemoteOptions
from scaleout.generate.remote.board import Board, Seat
from scaleout.generate.remote.comparison import Own
from scaleout.generate.remote.dialect import Exchange, Limits
from scaleout.generate.remote.faults import Broken, Busy, Fault, Lost, Unreachable
from scaleout.generate.remote.fleet import Fleet, Listener, gather_fleet
from scaleout.generate.remote.handshake import PROBE
from scaleout.generate.remote.link import Call, error_in
from scaleout.generate.remote.member import Member
from scaleout.generate.remote.split_characters import SplitCharacters
from scaleout.generate.text_needs import LoadTokenizer

if TYPE_CHECKING:
    from scaleout.tokenizer import Tokenizer

MOST_FAILED = 2
"""Engines that may be lost to one request, or fail on it: a request that breaks engines must not go through all of them."""
ABORTED = "aborted"
LAST_SECONDS = 2.0
"""After the grace period: how long aborted requests have to leave."""
UNBOUNDED = sys.maxsize
"""Choices at one time: it is the engines that know how many they can take."""


def open_engine(files: ModelSource, options: EngineOptions, load_tokenizer: LoadTokenizer | None = None) -> Engine:
    """Knows its engines, and has asked none: that is `connect`, on the event loop that will use them."""
    if options.remote is None or not options.remote.urls:
        raise ConfigError("the remote engine needs --engine-url")
    tokenizer = None
    if load_tokenizer is not None:
        with suppress(ConfigError):  # a tokens-only server whose model has no tokenizer can still pass ids on
            tokenizer = load_tokenizer()
    longest = min(options.max_model_len or files.max_model_len, files.max_model_len)
    vocab_size = max(files.vocab_size, tokenizer.vocab_size if tokenizer is not None else 0)
    split = None
    if tokenizer is not None:
        split = SplitCharacters(tokenizer.vocab_size, tokenizer.token_bytes)
    limits = Limits(longest, vocab_size, frozenset(files.eos_token_ids), split)
    return RemoteEngine(options.remote, describe_own(files, options.remote, tokenizer), limits)


def describe_own(files: ModelSource, remote: RemoteOptions, tokenizer: Tokenizer | None) -> Own:
    """This server's model, in the words in which engines are asked for theirs."""
    names = tuple(remote.models) or (files.name,)
    if tokenizer is None:
        return Own(names, files.vocab_size, files.eos_token_ids)
    return Own(
        names,
        files.vocab_size,
        files.eos_token_ids,
        tokenizer.special_ids,
        tokenizer.fingerprint,
        tokenizer.encode(PROBE, False),
    )


@define(eq=False)
class _Live:
    """A request under way. `open`: choices without an end. `calls`: its connections of the moment."""

    open: set[int]
    calls: list[Call] = field(factory=list)
    begun: bool = False
    aborted: bool = False

    def abort(self) -> None:
        self.aborted = True
        for call in self.calls:
            call.interrupt(ABORTED)


@define(eq=False)
class RemoteEngine:
    """A fleet behind the engine protocol. `seat` and `listener` may be set before `connect`."""

    options: RemoteOptions
    own: Own
    limits: Limits
    seat: Seat | None = None
    listener: Listener | None = None
    _fleet: Fleet | None = None
    _attendance: Attendance[_Live] = field(factory=lambda: Attendance(UNBOUNDED))
    _stats: EngineStats = field(factory=EngineStats)

    @property
    def max_model_len(self) -> int:
        return self.limits.max_model_len

    @property
    def vocab_size(self) -> int:
        return self.limits.vocab_size

    @property
    def eos_token_ids(self) -> Sequence[int]:
        return tuple(self.limits.eos_token_ids)

    @property
    def fleet(self) -> Fleet:
        """Raises `EngineFailed` before `connect` and after `close`."""
        if self._fleet is None:
            raise EngineFailed("The engines are not connected.", dead=True)
        return self._fleet

    async def connect(self, *, strict: bool = True) -> None:
        """Meet the engines. Raises `ConfigError` naming those that differ from this server's model, if `strict`."""
        seat = self.seat or Seat(Board(len(self.options.urls)))
        fleet = gather_fleet(self.options, self.own, seat, self.listener)
        if self.limits.split is not None and self.options.dialect in ("auto", "llamacpp"):
            await asyncio.to_thread(self.limits.split.load)
        await fleet.open(strict=strict)
        self._fleet = fleet

    async def generate(self, request: GenerateRequest, over: Over | None = None) -> AsyncIterator[TokenDelta]:
        """A choice that is `over` is made to its end, unless the wire gives each choice a connection of its own."""
        fleet = self.fleet
        self._check(request)
        n = request.sampling_params.n
        live = _Live(set(range(n)))
        sent = evolve(request, request_id=f"{request.request_id[:200]}-{token_hex(3)}")
        with self._attendance.enter(request, live):
            self._stats.prompt_tokens += len(request.token_ids)
            async with aclosing(self._try_engines(fleet, sent, live, over)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    self._stats.generated_tokens += len(delta.token_ids)
                    if delta.finish_reason is not None:
                        live.open.discard(delta.index)
                        self._stats.finished[delta.finish_reason] = self._stats.finished.get(delta.finish_reason, 0) + 1
                    yield delta

    def _check(self, request: GenerateRequest) -> None:
        """An id outside the vocabulary can end an engine: it never leaves this server."""
        check_params(request.sampling_params)
        check_repetition(request.sampling_params.repetition_detection or {})
        check_length(len(request.token_ids), self.limits.max_model_len)
        check_ids(request, self.limits.vocab_size)

    async def _try_engines(
        self, fleet: Fleet, request: GenerateRequest, live: _Live, over: Over | None
    ) -> AsyncIterator[TokenDelta]:
        """One engine after the other, until one has begun to answer."""
        tried: list[Member] = []
        faults: list[Fault] = []
        unsupported: NotSupported | None = None
        while (member := fleet.choose(request, tried)) is not None and may_go_on(faults):
            if faults and fleet.listener is not None:
                fleet.listener.retried(member.name)
            tried.append(member)
            try:
                async with aclosing(self._run(fleet, member, request, live, over)) as deltas:  # type: ignore[type-var]
                    async for delta in deltas:
                        yield delta
                return
            except NotSupported as error:
                if live.begun:
                    raise
                unsupported = error
            except Fault as fault:
                if live.aborted:
                    for index in sorted(live.open):
                        yield TokenDelta(index, [], finish_reason="abort")
                    return
                fleet.judge(member, fault)
                if live.begun:
                    raise EngineFailed(f"The engine failed in the middle of the answer: {fault}.") from fault
                faults.append(fault)
        raise unsupported if unsupported is not None and not faults else give_up(fleet, faults)

    async def _run(
        self, fleet: Fleet, member: Member, request: GenerateRequest, live: _Live, over: Over | None
    ) -> AsyncIterator[TokenDelta]:
        """One engine's answer. Raises `Fault`, also where the answer ends too early."""
        assert member.introduction is not None
        exchanges = member.introduction.dialect.write(request, member.introduction.facts, self.limits)
        n = request.sampling_params.n
        loop = asyncio.get_running_loop()
        began = loop.time()
        listener = fleet.listener
        outcome = "left"
        live.calls = []
        member.seat.add(member.place, n)
        if listener is not None:
            listener.began(member.name)
        try:
            lone = over if len(exchanges) == n > 1 else None
            merged = merge([self._follow(member, exchange, request, live, lone) for exchange in exchanges])
            ended = 0
            async with aclosing(merged) as deltas:
                async for delta in deltas:
                    if not live.begun:
                        live.begun = True
                        if listener is not None:
                            listener.first_token(member.name, loop.time() - began)
                    ended += delta.finish_reason is not None
                    yield delta
            if ended < n:
                raise Lost("the engine's stream ended before the answer did")
            outcome = "finished"
            fleet.praise(member)
        except RequestError as error:
            outcome = "refused"
            if live.begun:
                raise EngineFailed(f"The engine failed in the middle of the answer: {error.message}") from error
            raise
        except Busy:
            outcome = "busy"
            raise
        except Fault:
            outcome = "failed"
            raise
        finally:
            member.seat.add(member.place, -n)
            if listener is not None:
                listener.ended(member.name, outcome)

    async def _follow(
        self, member: Member, exchange: Exchange, request: GenerateRequest, live: _Live, over: Over | None
    ) -> AsyncGenerator[TokenDelta, None]:
        call = member.link.call()
        live.calls.append(call)
        reading = exchange.reading
        async with aclosing(call.events(exchange.path, exchange.body, request.trace_headers)) as arrivals:  # type: ignore[type-var]
            async for events in arrivals:
                for event in events:
                    error = error_in(event)
                    if error is not None:
                        raise error
                    for delta in reading.take(event):
                        yield delta
                        if over is not None and delta.finish_reason is None and over(delta.index):
                            yield TokenDelta(delta.index, [], finish_reason="abort")
                            return
                    if reading.over:
                        return
        for delta in reading.finish():
            yield delta

    async def abort(self, request_ids: Sequence[str]) -> None:
        for live in self._attendance.named(request_ids):
            live.abort()

    def health(self) -> None:
        self.fleet.health()

    def stats(self) -> EngineStats:
        return evolve(self._stats, running=self._attendance.taken, finished=dict(self._stats.finished))

    async def close(self, grace: float = 0) -> None:
        for wait in (grace, LAST_SECONDS):
            await self._attendance.drain(wait)
            await self.abort(self._attendance.everybody())
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            await fleet.close()


def may_go_on(faults: Sequence[Fault]) -> bool:
    """Whether a request that met with `faults` may be sent to yet another engine."""
    return sum(isinstance(fault, Lost | Broken) for fault in faults) < MOST_FAILED


def give_up(fleet: Fleet, faults: Sequence[Fault]) -> RequestError:
    """What to tell a client whose request no engine has begun to answer."""
    busy = [fault.retry_after for fault in faults if isinstance(fault, Busy)]
    failed = [fault for fault in faults if isinstance(fault, Lost | Broken)]
    if failed:
        return EngineFailed(f"No engine could answer: {failed[-1]}.")
    if busy:
        return Overloaded("All engines are full. Try again later.", retry_after=min(busy))
    unreachable = [fault for fault in faults if isinstance(fault, Unreachable)]
    return EngineFailed("No engine can be reached." if unreachable else fleet.absence(), dead=True)
