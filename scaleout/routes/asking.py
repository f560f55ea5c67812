"""What every coupled route does: render a request of any dialect, run it on the engine, send what comes of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from aiohttp import web
from attrs import evolve, frozen

from scaleout.codec import dumps
from scaleout.core import AnswerHead, GenerateRequest, Json, StreamOptions
from scaleout.core.media import MediaSet
from scaleout.dialects import Dialect, Request
from scaleout.generate.engine import Engine
from scaleout.pipeline import Front
from scaleout.pipeline.answer import answer_stream, answer_whole
from scaleout.pipeline.derendering import open_head
from scaleout.routes.keys import METRICS, REQUEST_ID, STAGES
from scaleout.routes.media import with_media
from scaleout.routes.requests import Parse, parse_request
from scaleout.routes.sse import EventStream
from scaleout.routes.trace import trace_headers


@frozen
class Asked:
    """A request that is rendered and has an engine to run on."""

    front: Front
    engine: Engine
    dialect: Dialect
    wanted: Request
    rendered: Sequence[GenerateRequest]
    head: AnswerHead

    async def answer(self) -> Json:
        """The whole answer."""
        return await answer_whole(self.front, self.engine, self.dialect, self.wanted, self.rendered, self.head)

    def events(self) -> AsyncGenerator[Json, None]:
        """The events of the streamed answer. Closing the iterator aborts what still runs."""
        return answer_stream(self.front, self.engine, self.dialect, self.wanted, self.rendered, self.head)


async def ask(
    request: web.Request, dialect: Dialect, body: Mapping[str, Json], parse: Parse | None = None, *, beyond: int = 0
) -> Asked:
    """Everything before the first token. `parse`: in place of the dialect's own. `beyond`: bytes to work on that are not in the body.

    Raises `RequestError`.
    """
    stages = request.app[STAGES]
    front = await stages.front()

    def work(media: MediaSet | None) -> tuple[Request, str, list[GenerateRequest]]:
        wanted, model = parse_request(request, dialect, body, parse)
        if stages.config.enable_force_include_usage:
            wanted = with_usage(wanted)
        rendered = front.render(wanted, dialect.name_request(wanted, request.get(REQUEST_ID)), media)
        return wanted, model, rendered if media is None else [front.for_engine(one) for one in rendered]

    wanted, model, rendered = await with_media(request, work, beyond)
    request.app[METRICS].rendered_tokens.inc(sum(len(one.token_ids) for one in rendered))
    trace = trace_headers(request)
    if trace is not None:
        rendered = [evolve(one, trace_headers=trace) for one in rendered]
    engine = stages.ready_engine()
    return Asked(front, engine, dialect, wanted, rendered, open_head(dialect, rendered[0].request_id, model))


def with_usage(wanted: Request) -> Request:
    """The request as if it had asked for usage at the end of its stream."""
    options = wanted.options
    if not options.stream:
        return wanted
    asked = evolve(options.stream_options or StreamOptions(), include_usage=True)
    return evolve(wanted, options=evolve(options, stream_options=asked))


async def send_stream(
    request: web.Request, asked: Asked, on_event: Callable[[Json], None] | None = None
) -> web.StreamResponse:
    """Send the answer as it comes. `on_event` sees each event before it is sent."""
    named = asked.dialect.NAMED_EVENTS
    keep_alive = request.app[STAGES].config.sse_keep_alive_interval
    async with EventStream(request, keep_alive=keep_alive) as stream, aclosing(asked.events()) as events:
        async for event in events:
            if on_event is not None:
                on_event(event)
            await stream.send(dumps(event), event["type"] if named else None)
        return await (stream.close() if named else stream.done())
