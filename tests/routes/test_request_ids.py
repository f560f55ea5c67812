"""`X-Request-Id`: taken from the caller within bounds, and put on every answer when asked for."""

from __future__ import annotations

import pytest
from aiohttp import web
from serving import read_answer

from scaleout.routes.answers import json_response
from scaleout.routes.keys import REQUEST_ID

from .conftest import Serve


async def tell(request: web.Request) -> web.Response:
    return json_response({"id": request.get(REQUEST_ID)})


@pytest.mark.parametrize("given", ["a", "chat-1/2:3", "x" * 256, '"}{<script>'])
def test_the_callers_id_reaches_the_route(serve: Serve, given: str) -> None:
    answer = serve(endpoint=tell).post("/test", {}, {"X-Request-Id": given})
    assert answer.json == {"id": given}
    assert "X-Request-Id" not in answer.headers


@pytest.mark.parametrize("given", ["", "x" * 257, "two words", "tab\there", "ü", "\x7f", "\x01"])
def test_an_id_that_is_too_long_or_not_visible_ascii_is_refused(serve: Serve, given: str) -> None:
    server = serve(endpoint=tell)
    with server.connect() as connection:
        head = f"POST /test HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nX-Request-Id: {given}\r\n\r\n"
        connection.sendall(head.encode("latin-1"))
        answer = read_answer(connection)
    assert answer.status == 400
    if answer.headers["Content-Type"] == "application/json":
        assert answer.error["param"] == "X-Request-Id"


def test_with_the_flag_every_answer_carries_the_id(serve: Serve) -> None:
    server = serve(endpoint=tell, enable_request_id_headers=True)
    assert server.get("/health", {"X-Request-Id": "mine"}).headers["X-Request-Id"] == "mine"
    assert server.get("/nothing", {"X-Request-Id": "mine"}).headers["X-Request-Id"] == "mine"
    fresh = server.post("/test", {})
    assert fresh.headers["X-Request-Id"] == fresh.json["id"]
    assert server.post("/test", {}).json["id"] != fresh.json["id"]
    refused = server.get("/health", {"X-Request-Id": "x" * 257})
    assert refused.status == 400
    assert len(refused.headers["X-Request-Id"]) == 32
