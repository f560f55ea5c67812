"""`/engines`: the engines elsewhere, one by one. To take one out for maintenance: drain it, wait until nothing is in flight, resume it."""

from __future__ import annotations

from aiohttp import web

from scaleout.routes.answers import json_response
from scaleout.routes.keys import STAGES
from scaleout.routes.table import Handler, Route


async def engines(request: web.Request) -> web.Response:
    """State, reason, load and wire of each engine."""
    return json_response({"engines": request.app[STAGES].remote_engine().fleet.describe()})


def make_drain(drained: bool) -> Handler:
    async def drain(request: web.Request) -> web.Response:
        """Running answers go on; answers with what `GET /engines` says of this engine."""
        fleet = request.app[STAGES].remote_engine().fleet
        return json_response(fleet.drain(request.match_info["name"], drained).describe())

    return drain


ROUTES: tuple[Route, ...] = (
    ("GET", "/engines", engines),
    ("POST", "/engines/{name}/drain", make_drain(True)),
    ("POST", "/engines/{name}/resume", make_drain(False)),
)
