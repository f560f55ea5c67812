"""The engine protocol, and the loop behind the in-process backends: one thread owns the device and runs `step` over and over."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from collections.abc import Sequence as ReadOnly
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from queue import Empty, SimpleQueue
from random import Random
from threading import Thread
from typing import Protocol
from uuid import uuid4

from attrs import evolve, frozen

from scaleout.core import GenerateRequest, TokenDelta
from scaleout.errors import ConfigError, EngineFailed, Overloaded
from scaleout.generate.admission import check_request
from scaleout.generate.compile_ahead import compiling_ahead
from scaleout.generate.encoding_queue import EncodingQueue, Eyes
from scaleout.generate.media import Media
from scaleout.generate.options import EngineLimits, EngineOptions, EngineStats, ModelSource
from scaleout.generate.scheduler import Scheduler, Slice
from scaleout.generate.sequence import UNTIL_THE_END, Sampled, Sequence
from scaleout.generate.stream import Event, Stream, hand_over
from scaleout.generate.text_needs import NOTHING, LoadTokenizer, TextNeeds, TextSide, needs_text

log = logging.getLogger(__name__)

Over = Callable[[int], bool]
"""Asked about a choice behind each of its deltas: whether its reader wants no more of it."""


class Engine(Protocol):
    """Token ids in, token ids out."""

    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> ReadOnly[int]: ...

    def generate(self, request: GenerateRequest, over: Over | None = None) -> AsyncIterator[TokenDelta]:
        """Deltas of all choices, interleaved; each choice ends with one that has a finish reason. Closing the iterator aborts.

        A choice that is `over` for its reader is aborted alone while its siblings go on, by an engine that can. Another one makes it
        to its end: whoever says that a choice is over must not mind what still comes of it.

        Raises before the first delta: BadRequest, NotSupported, Overloaded. At any time: EngineFailed.
        """

    async def abort(self, request_ids: ReadOnly[str]) -> None:
        """Ends requests with finish reason `abort` within one step. Unknown ids are ignored."""

    def health(self) -> None:
        """Raises EngineFailed(dead=True) if nothing can be generated any more."""

    def stats(self) -> EngineStats: ...

    async def close(self, grace: float = 0) -> None:
        """Refuses new requests, lets running ones finish for `grace` seconds, aborts the rest and frees the device."""


def open_engine(files: ModelSource, options: EngineOptions, load_tokenizer: LoadTokenizer | None = None) -> Engine:
    """Opens `backends/<options.backend>.py` on a model. Takes as long as loading the weights takes: call it off the event loop.

    `load_tokenizer` is called at the first request that needs text: bad words and structured output.
    """
    with compiling_ahead(files, options):
        try:
            backend = import_module(f"scaleout.generate.backends.{options.backend}")
        except ModuleNotFoundError as error:
            raise ConfigError(f"The engine backend {options.backend!r} cannot be used: {error}") from error
        # In a thread that ends: the processor threads that torch ties to it would otherwise stay, and keep those of the engine from
        # spinning.
        with ThreadPoolExecutor(1, "open engine") as opener:
            engine: Engine = opener.submit(backend.open_engine, files, options, load_tokenizer).result()
    return engine


class Runner(Protocol):
    """The device's side of the loop. Every call comes from the engine thread."""

    def begin(self) -> None:
        """The thread's first call."""

    def run(self, batch: ReadOnly[Slice]) -> list[Sampled]:
        """Computes a batch; one result per slice that samples, in order."""

    def alive(self) -> bool:
        """Whether the device still answers after a failed step."""

    def close(self) -> None: ...


@frozen
class _Abort:
    request_id: str | None = None
    stream: Stream | None = None
    index: int | None = None
    """One choice of the stream; None: all of them."""

    def named(self, live: Mapping[Stream, ReadOnly[Sequence]]) -> list[Sequence]:
        if self.stream is not None:
            return [one for one in live.get(self.stream, ()) if self.index is None or one.index == self.index]
        return [one for choices in live.values() for one in choices if one.request.request_id == self.request_id]


class EngineLoop:
    """Batches the requests of any number of coroutines into the steps of one thread."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        limits: EngineLimits,
        options: EngineOptions,
        eos: Iterable[int],
        load_tokenizer: LoadTokenizer | None = None,
        eyes: Eyes | None = None,
    ) -> None:
        self.max_model_len = limits.max_model_len
        self.vocab_size = limits.vocab_size
        self.eos_token_ids = tuple(eos)
        self._runner, self._scheduler, self._limits, self._options = runner, scheduler, limits, options
        self._eyes, self._unseen = eyes, EncodingQueue(eyes, scheduler)
        self._text = TextSide(load_tokenizer, options.thinking, limits.vocab_size, self.eos_token_ids)
        self._seeds = Random(options.seed)
        self._commands: SimpleQueue[list[Sequence] | _Abort | None] = SimpleQueue()
        self._live: dict[Stream, list[Sequence]] = {}
        self._admitted = 0
        self._arrivals = 0
        self._drained: asyncio.Event | None = None
        self._ended: str | None = None
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------ the event loops' side

    async def generate(self, request: GenerateRequest, over: Over | None = None) -> AsyncIterator[TokenDelta]:
        self.health()
        check_request(request, self._limits)
        n = request.sampling_params.n
        if self._drained is not None:
            raise Overloaded("The server is shutting down.")
        if self._admitted + n > self._limits.max_num_seqs + self._options.max_queued:
            raise Overloaded(f"The engine is full: {self._admitted} choices run or wait. Try again later.")
        stream = Stream(asyncio.get_running_loop(), n)
        self._admitted += n
        try:
            needs = await asyncio.to_thread(self._text.prepare, request) if needs_text(request) else NOTHING
            sees = request.features is not None and self._eyes is not None
            media = await asyncio.to_thread(self._eyes.prepare, request) if sees else None  # type: ignore[union-attr]
            self._commands.put(self._sequences(request, stream, needs, media))
            self.health()
            async for delta in stream.deltas():
                yield delta
                if over is not None and delta.finish_reason is None and over(delta.index):
                    self._commands.put(_Abort(stream=stream, index=delta.index))
        finally:
            self._admitted -= n
            if self._drained is not None and not self._admitted:
                self._drained.set()
            if stream.open:
                self._commands.put(_Abort(stream=stream))

    async def abort(self, request_ids: ReadOnly[str]) -> None:
        for request_id in request_ids:
            self._commands.put(_Abort(request_id=request_id))

    def health(self) -> None:
        if self._ended is not None:
            raise EngineFailed(self._ended, dead=True)

    def stats(self) -> EngineStats:
        now = self._scheduler.stats
        seen = {} if self._eyes is None else self._eyes.counts()
        return evolve(now, finished=dict(now.finished), **seen)

    async def close(self, grace: float = 0) -> None:
        self._drained = asyncio.Event()
        if self._admitted:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), grace)
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    def _sequences(
        self, request: GenerateRequest, stream: Stream, needs: TextNeeds, media: Media | None
    ) -> list[Sequence]:
        params, options = request.sampling_params, self._options
        seed = params.seed if params.seed is not None and params.seed != -1 else self._seeds.getrandbits(63)
        # Without prefix caching the choices of one request still share their prompt, and nobody else does.
        salt = f"shared {request.cache_salt or ''}" if options.enable_prefix_caching else f"own {uuid4().hex}"
        interval = params.stream_interval or options.stream_interval
        final_only = not request.stream and not params.stop
        self._arrivals += 1
        return [
            Sequence(
                request=request,
                index=index,
                arrival=self._arrivals,
                stream=stream,
                eos=frozenset(self.eos_token_ids),
                max_model_len=self.max_model_len,
                seed=seed + index,
                salt=salt,
                needs=needs,
                media=media,
                interval=UNTIL_THE_END if final_only else interval,
            )
            for index in range(params.n)
        ]

    # ------------------------------------------------------------------------------ the engine thread's side

    def step(self) -> None:
        """Schedule, run and sample, deliver: the whole engine."""
        self._see()
        batch = self._scheduler.schedule()
        if not batch and not (self._scheduler.running or self._scheduler.waiting):
            return
        if not batch:
            raise RuntimeError("requests wait, and none of them can ever be scheduled")
        self._scheduler.stats.steps += 1
        try:
            sampled = self._runner.run(batch)
        except Exception as error:
            self._fail(batch, error)
        else:
            moved = self._fail_alone(self._scheduler.advance(batch, sampled))
            self._retire(sequence for sequence in moved if sequence.finish_reason is not None)
            self._count_places()
            self._deliver([(sequence.stream, sequence.take_delta()) for sequence in moved if sequence.due()])

    def _run(self) -> None:
        reason = "The engine is closed."
        try:
            self._runner.begin()
            while self._obey():
                self.step()
        except BaseException as error:
            log.exception("The engine loop died")
            reason = f"The engine is dead: {type(error).__name__}"
        finally:
            self._end(reason)
            self._runner.close()

    def _obey(self) -> bool:
        """Takes in new requests and aborts; waits for one when there is nothing else to do. False: stop."""
        while True:
            idle = not (self._scheduler.running or self._scheduler.waiting or self._unseen.waiting)
            try:
                command = self._commands.get(block=idle)
            except Empty:
                return True
            if command is None:
                self._abort([sequence for choices in self._live.values() for sequence in choices])
                return False
            if isinstance(command, _Abort):
                self._abort(command.named(self._live))
            else:
                leader = command[0]
                leader.followers = command[1:]
                self._live[leader.stream] = command
                self._unseen.add(leader)

    def _see(self) -> None:
        """One picture at most. What is wrong with it is told to its request alone."""
        failed: tuple[Sequence, Exception] | None
        try:
            failed = self._unseen.advance()
        # Of every kind, since a model's own code runs here: only a lost device may end the loop, and the picture's request is told.
        except Exception:
            log.exception("A picture could not be encoded")
            if not self._runner.alive():
                raise
            failed = self._unseen.waiting[0], EngineFailed("The engine failed while it worked on this request.")
        if failed is not None:
            sequence, failure = failed
            for _ in self._drop(sequence.stream):
                self._count_end("error")
            self._count_places()
            self._deliver([(sequence.stream, failure)])

    def _abort(self, aborted: ReadOnly[Sequence]) -> None:
        for sequence in aborted:
            self._unseen.drop(sequence)
            self._scheduler.drop(sequence)
            sequence.finish("abort")
        self._retire(aborted)
        self._count_places()
        self._deliver([(sequence.stream, sequence.take_delta()) for sequence in aborted])

    def _fail(self, batch: ReadOnly[Slice], error: Exception) -> None:
        """A step failed: its requests get an error, the others never notice. A lost device takes the loop along."""
        log.error("A step of %d sequences failed", len(batch), exc_info=error)
        if not self._runner.alive():
            raise error
        self._scheduler.stats.failed_steps += 1
        streams = {work.sequence.stream for work in batch}
        for stream in streams:
            for _ in self._drop(stream):
                self._count_end("error")
        self._count_places()
        self._deliver(
            [(stream, EngineFailed("The engine failed while it worked on this request.")) for stream in streams]
        )

    def _fail_alone(self, moved: Iterable[Sequence]) -> list[Sequence]:
        """Ends the requests that cannot go on, each with its own error. Returns the others."""
        failed = {sequence.stream: sequence.failure for sequence in moved if sequence.failure is not None}
        for stream, failure in failed.items():
            for _ in self._drop(stream):
                self._count_end("error")
            self._deliver([(stream, failure)])
        return [sequence for sequence in moved if sequence.stream not in failed]

    def _end(self, reason: str) -> None:
        """Nobody waits for an engine that is gone. `_ended` first: whoever submits after the queue was emptied sees it."""
        self._ended = reason
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, list):
                self._live[command[0].stream] = command
        self._deliver([(stream, EngineFailed(reason, dead=True)) for stream in self._live])
        self._live.clear()
        for sequence in list(self._unseen.waiting):
            self._unseen.drop(sequence)

    def _drop(self, stream: Stream) -> list[Sequence]:
        choices = self._live.pop(stream)
        for sequence in choices:
            self._unseen.drop(sequence)
            self._scheduler.drop(sequence)
        return choices

    def _retire(self, finished: Iterable[Sequence]) -> None:
        for sequence in finished:
            choices = self._live[sequence.stream]
            choices.remove(sequence)
            if not choices:
                del self._live[sequence.stream]
            self._count_end(str(sequence.finish_reason))

    def _deliver(self, events: ReadOnly[Event]) -> None:
        """One wake-up per event loop and step. A loop that is gone has nobody left who could be told."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Event]] = defaultdict(list)
        for event in events:
            by_loop[event[0].loop].append(event)
        for loop, its_events in by_loop.items():
            try:
                loop.call_soon_threadsafe(hand_over, its_events)
            except RuntimeError:
                for stream in {stream for stream, _ in its_events}:
                    self._commands.put(_Abort(stream=stream))

    def _count_end(self, reason: str) -> None:
        finished = self._scheduler.stats.finished
        finished[reason] = finished.get(reason, 0) + 1

    def _count_places(self) -> None:
        stats, scheduler = self._scheduler.stats, self._scheduler
        stats.running, stats.waiting = len(scheduler.running), len(scheduler.waiting) + len(self._unseen.waiting)
        stats.blocks_total, stats.blocks_free = scheduler.pool.count, scheduler.pool.free
