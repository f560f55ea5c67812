"""One connection per answer: an engine's event stream comes in as the body, the dialect's stream goes out while it still arrives.

The first event, `event: context`, says what is answered: the body of a derender request without the engine's output. The engine's own
events follow as they came. Nothing is kept of them but the state of each choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web
from attrs import define, field

from scaleout.codec import dumps
from scaleout.core import GenerateChunk, Json
from scaleout.dialects import Dialect, Request
from scaleout.errors import BadRequest, RequestError, TooLarge
from scaleout.pipeline import Front, Stages
from scaleout.pipeline.choices import Choices
from scaleout.pipeline.derendering import StreamState, load_stream_state, open_choice, open_head
from scaleout.routes.body import RequestTimeout, check_plain, parse_object
from scaleout.routes.derender_context import (
    Body,
    check_total,
    read_chunk,
    read_context,
    read_count,
    read_prompt_ids,
    read_state,
    read_text,
    recover_prompt,
    with_ids,
)
from scaleout.routes.keys import CONFIG, METRICS, STAGES
from scaleout.routes.sse import EventStream, frame
from scaleout.routes.work import run
from scaleout.sse_reader import EventReader, EventTooLong, ServerEvent

EVENT_STREAM = "text/event-stream"
CONTEXT = "context"
"""Name of the first event."""
DONE = b"[DONE]"


async def derender_stream(request: web.Request, dialect: Dialect, context_key: str) -> web.StreamResponse:
    """Answer one event stream with another. What goes wrong before the first event is out is an ordinary error answer."""
    check_plain(request)
    stages = request.app[STAGES]
    answer = StreamedAnswer(stages, await stages.front(), dialect, context_key)
    reader = EventReader(stages.config.limits.max_body_bytes)
    async with EventStream(request, keep_alive=stages.config.sse_keep_alive_interval) as stream:
        while not answer.over:
            await pass_on(request, answer, reader, stream)
        return await (stream.close() if dialect.NAMED_EVENTS else stream.done())


async def pass_on(request: web.Request, answer: StreamedAnswer, reader: EventReader, stream: EventStream) -> None:
    """Read what has arrived, and write what that makes known: what came before a fault was right, and goes out first."""
    piece = await next_piece(request)
    frames: list[bytes] = []
    fault, before = None, answer.tokens
    try:
        await run(request, lambda: answer.read(reader, piece, frames), len(piece))
    except RequestError as error:
        fault = error
    request.app[METRICS].derendered_tokens.inc(answer.tokens - before)
    if frames:
        await stream.write(b"".join(frames), len(frames))
    if fault is not None:
        raise fault


async def next_piece(request: web.Request) -> bytes:
    """The bytes that have arrived, `b""` at the body's end. Raises `RequestTimeout` when nothing comes for too long."""
    silence = request.app[CONFIG].limits.max_stream_silence
    try:
        async with asyncio.timeout(silence):
            return await request.content.readany()
    except web.RequestPayloadError:
        raise BadRequest("The body does not arrive as its headers announce it") from None
    except TimeoutError:
        raise RequestTimeout(f"Nothing has arrived for {silence:g} seconds") from None


class EngineError(RequestError):
    """What an engine said went wrong, in its own words."""

    def __init__(self, given: Json) -> None:
        told = given if isinstance(given, dict) else {}
        param, status, kind = told.get("param"), told.get("code"), told.get("type")
        super().__init__(str(told.get("message") or "The engine failed"), param if isinstance(param, str) else None)
        if type(status) is int and 400 <= status < 600:
            self.status = status
        if isinstance(kind, str):
            self.type = kind


@define
class StreamedAnswer:
    """The answer to one event stream, event by event. Knows no connection.

    `over`: everything has been said, whatever else may arrive. `tokens`: ids read so far.
    """

    stages: Stages
    front: Front
    dialect: Dialect
    context_key: str
    over: bool = field(default=False, init=False)
    tokens: int = field(default=0, init=False)
    _events: int = field(default=0, init=False)
    _context: Context | None = field(default=None, init=False)
    _choices: Choices | None = field(default=None, init=False)

    def read(self, reader: EventReader, piece: bytes, frames: list[bytes]) -> None:
        """Add to `frames` what `piece` makes known; an empty one is the body's end. Raises `BadRequest`, `EngineError`."""
        if not piece:
            self._end_body(frames)
        try:
            for event in reader.feed(piece):
                self._take(event, frames)
                if self.over:
                    return
        except EventTooLong:
            raise TooLarge(f"Event {self._events} is larger than the limit of {reader.max_bytes} bytes") from None

    def _take(self, event: ServerEvent, frames: list[bytes]) -> None:
        place = self._events
        self._events += 1
        if event.data == DONE and self._context is not None:
            self._finish(frames)
            return
        value = parse_object(event.data, self.stages.config.limits.max_json_depth, f"body.events.{place}")
        if self._context is None:
            if event.name != CONTEXT:
                raise BadRequest("The first event must be the context (event: context)", "body.events.0")
            self._context = read_stream_context(self.stages, self.front, self.dialect, value, self.context_key)
            return
        if event.name == CONTEXT:
            raise BadRequest("The context comes once, as the first event", f"body.events.{place}")
        if value.get("error") is not None:
            raise EngineError(value["error"])
        self._take_chunk(read_chunk(self.front, value, f"body.events.{place}"), f"body.events.{place}", frames)

    def _take_chunk(self, chunk: GenerateChunk, path: str, frames: list[bytes]) -> None:
        assert self._context is not None
        if self._choices is None:
            self._choices = self._context.open(chunk)
        choices = self._choices
        for i, given in enumerate(chunk.choices):
            self._check_index(choices, given.index, f"{path}.choices.{i}.index")
            check_total(self.front, choices.state(given.index), len(given.token_ids), f"{path}.choices.{i}.token_ids")
            self.tokens += len(given.token_ids)
        self._write(choices.take(chunk), frames)
        # What an engine makes behind a stop string belongs to no answer, so there is nothing to wait for but its count.
        if choices.all_ended and choices.watches_stops:
            self._finish(frames)

    def _check_index(self, choices: Choices, index: int, path: str) -> None:
        most = self.front.bounds.max_choices if choices.expected is None else choices.expected
        if not 0 <= index < most:
            raise BadRequest(f"choice {index} is none of the {most} that there can be", path)

    def _end_body(self, frames: list[bytes]) -> None:
        if self._choices is None or not self._choices.all_ended:
            raise BadRequest("The body ended before the answer did", "body")
        self._finish(frames)

    def _finish(self, frames: list[bytes]) -> None:
        if self._choices is None:
            raise BadRequest("The engine's stream holds no answer", "body")
        self._write(self._choices.finish(), frames)
        self.over = True

    def _write(self, events: Sequence[Json], frames: list[bytes]) -> None:
        named = self.dialect.NAMED_EVENTS
        frames += [frame(dumps(event), event["type"] if named else None) for event in events]


@define
class Context:
    """What the first event told. `carried` is the state that render returned, where that stands for the request."""

    front: Front
    dialect: Dialect
    model: str
    request: Request | None
    prompt_ids: Sequence[int] | None
    prompt_tokens: int | None
    carried: Json

    def open(self, chunk: GenerateChunk) -> Choices:
        """The answer's choices, none of them begun. `chunk` is the engine's first."""
        ids = self.prompt_ids if self.prompt_ids is not None else chunk.prompt_token_ids
        if self.carried is not None:
            return self._open_carried(ids)
        if ids is None:
            ids = recover_prompt(self.front, self.request)
        head = with_ids(open_head(self.dialect, chunk.request_id, self.model), ids)

        def open_one(_: int) -> StreamState:
            return open_choice(self.front, self.dialect, self.request, head, ids, self.prompt_tokens)

        if self.request is None:
            return Choices(self.front, self.dialect, None, head, open_one, prompt_tokens=self.prompt_tokens)
        options, n = self.request.options.stream_options, self.request.sampling.n
        wants_usage = options is not None and options.include_usage
        return Choices(self.front, self.dialect, self.request, head, open_one, n, self.prompt_tokens, wants_usage)

    def _open_carried(self, ids: Sequence[int] | None) -> Choices:
        def open_one(_: int) -> StreamState:
            state = load_stream_state(self.front, self.dialect, self.carried)
            state.head = with_ids(state.head, ids)
            return state

        first = open_one(0)
        return Choices(
            self.front,
            self.dialect,
            self.request,
            first.head,
            open_one,
            first.choices,
            first.prompt_tokens,
            first.wants_usage or None,
        )


def read_stream_context(stages: Stages, front: Front, dialect: Dialect, body: Body, key: str) -> Context:
    """The context event. Beside a state the request may be missing. Raises `BadRequest`, `NotFound`."""
    carried = body.get("stream_state")
    if carried is not None:
        read_state(stages, front, dialect, carried)
    return Context(
        front,
        dialect,
        stages.served(read_text(body, "model")),
        read_context(stages, dialect, body, key) if carried is None or body.get(key) is not None else None,
        read_prompt_ids(front, body.get("prompt_token_ids"), "body.prompt_token_ids", "prompt_token_ids length ({})"),
        read_count(body.get("prompt_tokens"), "body.prompt_tokens"),
        carried,
    )
