"""Whatever goes wrong, the client sees one JSON shape, and nothing of the inside of the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from aiohttp import web
from serving import Server, read_answer, serving

from scaleout.app import make_app
from scaleout.config import Mode, ModeConfig
from scaleout.errors import BadRequest, EngineFailed, InvalidField, NotSupported, Overloaded, StaleState
from scaleout.routes.answers import MAX_MESSAGE
from scaleout.routes.table import RouteTable, mount

from .conftest import Serve


@pytest.mark.parametrize(
    ("raised", "status", "kind", "param", "message"),
    [
        (BadRequest("n must be 1", "n", 2), 400, "BadRequestError", "n", "n must be 1 (parameter=n, value=2)"),
        (
            InvalidField("1 validation error:\n  body.n: no", "body.n"),
            400,
            "Bad Request",
            "body.n",
            "1 validation error:\n  body.n: no",
        ),
        (StaleState("old state", "stream_state"), 400, "BadRequestError", "stream_state", "old state"),
        (NotSupported("no tokenizer"), 501, "NotImplementedError", None, "no tokenizer"),
        (EngineFailed("a step failed"), 500, "InternalServerError", None, "a step failed"),
        (EngineFailed("gone", dead=True), 503, "ServiceUnavailableError", None, "gone"),
        (web.HTTPTooManyRequests(), 429, "Bad Request", None, "Too Many Requests"),
        (web.HTTPBadGateway(), 502, "InternalServerError", None, "Bad Gateway"),
    ],
)
def test_what_a_route_raises_is_said_in_one_shape(
    serve: Serve, raised: Exception, status: int, kind: str, param: str | None, message: str
) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise raised

    answer = serve(endpoint=fail).post("/test", {})
    assert answer.status == status
    assert answer.error == {"message": message, "type": kind, "param": param, "code": status}


def test_every_503_says_when_to_come_back(serve: Serve) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise EngineFailed("gone", dead=True)

    assert int(serve(endpoint=fail).post("/test", {}).headers["Retry-After"]) > 0


def test_a_full_server_says_when_to_come_back(serve: Serve) -> None:
    async def refuse(_: web.Request) -> web.Response:
        raise Overloaded("full", retry_after=7)

    answer = serve(endpoint=refuse).post("/test", {})
    assert (answer.status, answer.headers["Retry-After"]) == (503, "7")
    assert answer.error["type"] == "ServiceUnavailableError"


@pytest.mark.parametrize(
    "raised",
    [
        RuntimeError("secret at 0x7f0000000000 in /srv/models/secret.py"),
        KeyError("secret"),
        RecursionError("secret"),
        MemoryError("secret"),
        ConnectionRefusedError("secret backend 10.0.0.1"),
        TimeoutError("secret"),
        ExceptionGroup("secret", [ValueError("secret")]),
    ],
)
def test_a_fault_of_the_server_is_in_the_log_and_not_in_the_answer(
    serve: Serve, caplog: pytest.LogCaptureFixture, raised: Exception
) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise raised

    server = serve(endpoint=fail)
    answer = server.post("/test", {})
    assert answer.status == 500
    assert answer.error == {
        "message": "Internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    assert b"secret" not in answer.body
    assert "secret" in caplog.text
    assert server.get("/health").status == 200


def test_a_message_that_quotes_the_request_is_cut(serve: Serve) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise BadRequest("x" * 1_000_000)

    answer = serve(endpoint=fail).post("/test", {})
    assert len(answer.error["message"]) == MAX_MESSAGE + 1


def test_a_message_with_half_a_character_is_still_sent(serve: Serve) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise BadRequest("odd \ud800 text")

    assert serve(endpoint=fail).post("/test", {}).error["message"] == "odd ? text"


@pytest.fixture
def server(serve: Serve) -> Server:
    return serve(root_path="/api")


@pytest.mark.parametrize(
    "path", ["/nothing", "/", "/v1/nothing", "/health//", "/v1%2Fmodels", "/%FF", "/nothing%0d%0aX:%20y"]
)
def test_an_unknown_path_is_a_json_404(server: Server, path: str) -> None:
    for method in ("GET", "POST"):
        answer = server.ask(method, path, b"{}" if method == "POST" else None)
        assert answer.status == 404
        assert answer.error["type"] == "NotFoundError"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("POST", "/v1/models", "GET, HEAD"), ("POST", "/live", "GET, HEAD"), ("PATCH", "/ping", "GET, HEAD, POST")],
)
def test_a_wrong_method_is_a_json_405_that_names_the_right_ones(
    server: Server, method: str, path: str, allow: str
) -> None:
    for spelled in (path, path + "/", "/api" + path):
        answer = server.ask(method, spelled)
        assert answer.status == 405
        assert answer.headers["Allow"] == allow
        assert answer.error["type"] == "MethodNotAllowedError"


def test_paths_answer_with_a_trailing_slash_and_below_the_proxys_prefix(server: Server) -> None:
    wanted = server.get("/v1/models").json
    for path in ("/v1/models/", "/api/v1/models", "/api/v1/models/", "/v1/models?x=1"):
        assert server.get(path).json == wanted
    assert server.get("/api/api/v1/models").status == 404


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/messages/render", "/v1/messages/count_tokens", "/api/v1/messages/nothing"]
)
def test_below_messages_the_anthropic_shape_is_spoken(server: Server, path: str) -> None:
    answer = server.get(path)
    assert answer.status in (404, 405)
    assert list(answer.json) == ["type", "error"]
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] in ("not_found_error", "invalid_request_error")
    assert answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (Overloaded("x"), "overloaded_error"),
        (EngineFailed("x"), "api_error"),
        (NotSupported("x"), "api_error"),
        (ZeroDivisionError("x"), "api_error"),
    ],
)
def test_anthropic_error_types(echo_config: Callable[..., ModeConfig], raised: Exception, kind: str) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise raised

    app = make_app(echo_config(Mode.TOKENS_ONLY))
    mount(app, [RouteTable("messages", (("POST", "/v1/messages/test", fail),), works=True)], "")
    with serving(app) as server:
        assert server.post("/v1/messages/test", {}).json["error"]["type"] == kind


def test_a_client_that_goes_away_is_no_error(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError("unreachable")

    server = serve(endpoint=wait)
    with server.connect() as connection:
        connection.sendall(b"POST /test HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        server.within(entered.wait)
    server.within(cancelled.wait)
    assert server.get("/load").json == {"server_load": 0}
    assert b'scaleout_requests_total{method="POST",route="unmatched",status="499"} 1.0' in server.get("/metrics").body
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_bytes_that_are_no_http_do_not_disturb_the_server(server: Server) -> None:
    for junk in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G\x00T / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n" * 50,
    ):
        with server.connect() as connection:
            connection.sendall(junk)
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 100_000 + b"\r\n\r\n")
        assert read_answer(connection).status == 400
    assert server.get("/health").status == 200
