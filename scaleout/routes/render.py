"""`{dialect}/render`: a request of any dialect → what to send to a token engine."""

from __future__ import annotations

from aiohttp import web
from attrs import evolve

from scaleout.codec import dumps
from scaleout.core import CompletionRequest, GenerateRequest, Json
from scaleout.core.media import MediaSet
from scaleout.dialects import DIALECTS, Dialect, Request
from scaleout.pipeline import Front
from scaleout.pipeline.derendering import dump_stream_state, open_choice, open_head
from scaleout.routes.answers import raw_json
from scaleout.routes.body import read_json
from scaleout.routes.keys import METRICS, REQUEST_ID, STAGES
from scaleout.routes.media import with_media
from scaleout.routes.requests import parse_request
from scaleout.routes.table import Handler, Route
from scaleout.wire import write_generate_request


def make_handler(dialect: Dialect) -> Handler:
    async def render(request: web.Request) -> web.StreamResponse:
        body = await read_json(request)
        front = await request.app[STAGES].front()

        def work(media: MediaSet | None) -> tuple[bytes, int]:
            wanted, model = parse_request(request, dialect, body)
            rendered = front.render(wanted, dialect.name_request(wanted, request.get(REQUEST_ID)), media)
            if wanted.options.return_derender_state:
                rendered = [with_state(front, dialect, wanted, one, model) for one in rendered]
            wire: Json = [write_generate_request(one) for one in rendered]
            if not isinstance(wanted, CompletionRequest):
                (wire,) = wire
            return dumps(wire), sum(len(one.token_ids) for one in rendered)

        payload, tokens = await with_media(request, work)
        request.app[METRICS].rendered_tokens.inc(tokens)
        return raw_json(payload)

    return render


def with_state(
    front: Front, dialect: Dialect, wanted: Request, rendered: GenerateRequest, model: str
) -> GenerateRequest:
    """The first derender state travels with the rendered request, so that nobody has to send the prompt back."""
    head = open_head(dialect, rendered.request_id, model)
    state = open_choice(front, dialect, wanted, head, rendered.token_ids, len(rendered.token_ids))
    state.choices = rendered.sampling_params.n
    state.wants_usage = rendered.stream_options is not None and rendered.stream_options.include_usage
    return evolve(rendered, derender_state=dump_stream_state(front, dialect, state))


ROUTES: tuple[Route, ...] = tuple(("POST", f"{dialect.PATH}/render", make_handler(dialect)) for dialect in DIALECTS)
