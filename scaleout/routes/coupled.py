"""The ordinary endpoints: all three stages in one request."""

from __future__ import annotations

from contextlib import aclosing

from aiohttp import web

from scaleout.codec import dumps
from scaleout.core import GenerateRequest
from scaleout.dialects import DIALECTS, Dialect, Request
from scaleout.pipeline.answer import answer_stream, answer_whole
from scaleout.pipeline.derendering import open_head
from scaleout.routes.answers import json_response
from scaleout.routes.body import read_json
from scaleout.routes.keys import METRICS, REQUEST_ID, STAGES
from scaleout.routes.requests import parse_request
from scaleout.routes.sse import EventStream
from scaleout.routes.table import Handler, Route
from scaleout.routes.work import run


def make_handler(dialect: Dialect) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        stages = request.app[STAGES]
        body = await read_json(request)
        front = await stages.front()

        def work() -> tuple[Request, str, list[GenerateRequest]]:
            wanted, model = parse_request(request, dialect, body)
            return wanted, model, front.render(wanted, dialect.name_request(wanted, request.get(REQUEST_ID)))

        wanted, model, rendered = await run(request, work)
        request.app[METRICS].rendered_tokens.inc(sum(len(one.token_ids) for one in rendered))
        engine = stages.ready_engine()
        head = open_head(dialect, rendered[0].request_id, model)
        if not wanted.options.stream:
            return json_response(await answer_whole(front, engine, dialect, wanted, rendered, head))
        events = answer_stream(front, engine, dialect, wanted, rendered, head)
        async with EventStream(request, keep_alive=stages.config.sse_keep_alive_interval) as stream, aclosing(events):
            async for event in events:
                await stream.send(dumps(event), event["type"] if dialect.NAMED_EVENTS else None)
            return await (stream.close() if dialect.NAMED_EVENTS else stream.done())

    return answer


ROUTES: tuple[Route, ...] = tuple(("POST", dialect.PATH, make_handler(dialect)) for dialect in DIALECTS)
