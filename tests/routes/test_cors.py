"""Pages of other origins: whose browsers are told that they may ask, and what they may send."""

from __future__ import annotations

from typing import Any

import pytest
from serving import Answer, Server

from scaleout.config import Mode
from scaleout.config.web import WebOptions

from .conftest import Serve

HOME = "https://app.example"
PATH = "/tokenize"


def ask_first(server: Server, origin: str = HOME, method: str = "POST", headers: str | None = None) -> Answer:
    sent = {"Origin": origin, "Access-Control-Request-Method": method}
    if headers is not None:
        sent["Access-Control-Request-Headers"] = headers
    return server.ask("OPTIONS", PATH, None, sent)


def serve_with(serve: Serve, **options: Any) -> Server:
    return serve(Mode.RENDER_ONLY, web=WebOptions(**options), api_keys=("k",))


def test_without_the_setting_no_page_may(serve: Serve) -> None:
    server = serve(Mode.RENDER_ONLY)
    assert ask_first(server).status == 405
    answer = server.post(PATH, {"prompt": "x"}, {"Origin": HOME})
    assert answer.status == 200
    assert not [name for name in answer.headers if name.lower().startswith("access-control") or name == "Vary"]


def test_a_named_origin_may_ask_without_a_key_whether_it_may_ask(serve: Serve) -> None:
    server = serve_with(serve, allowed_origins=(HOME,))
    answer = ask_first(server, headers="Authorization, X-Any")
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == HOME
    assert answer.headers["Access-Control-Allow-Methods"] == "POST"
    assert answer.headers["Access-Control-Allow-Headers"] == "Authorization, X-Any"
    assert answer.headers["Vary"] == "Origin"
    assert answer.headers.get("Access-Control-Allow-Credentials") is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"origin": "https://other.example"}, "origin"),
        ({"origin": HOME + ".evil.example"}, "origin"),
        ({"origin": "null"}, "origin"),
        ({"method": "DELETE"}, "method"),
        ({"headers": "authorization, x-other"}, "headers"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(serve: Serve, asked: dict[str, str], said: str) -> None:
    server = serve_with(
        serve, allowed_origins=(HOME,), allowed_methods=("GET", "POST"), allowed_headers=("Authorization",)
    )
    assert ask_first(server, headers="authorization, content-type").status == 200
    answer = ask_first(server, **asked)
    assert answer.status == 400
    assert f"Disallowed CORS {said}" in answer.error["message"]


def test_every_answer_says_who_may_read_it_errors_too(serve: Serve) -> None:
    server = serve_with(serve, allowed_origins=(HOME, "https://two.example"), allow_credentials=True)
    for origin in (HOME, "https://two.example"):
        for headers, status in (({"Authorization": "Bearer k"}, 200), ({}, 401)):
            answer = server.post(PATH, {"prompt": "x"}, {"Origin": origin, **headers})
            assert answer.status == status
            assert answer.headers["Access-Control-Allow-Origin"] == origin
            assert answer.headers["Access-Control-Allow-Credentials"] == "true"
    other = server.post(PATH, {"prompt": "x"}, {"Origin": "https://other.example", "Authorization": "Bearer k"})
    assert other.status == 200
    assert other.headers.get("Access-Control-Allow-Origin") is None
    assert other.headers["Vary"] == "Origin"


def test_streams_say_it_too(serve: Serve) -> None:
    server = serve(Mode.TOKENS_ONLY, web=WebOptions(allowed_origins=("*",)))
    body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 2}, "stream": True}
    answer = server.post("/inference/v1/generate", body, {"Origin": HOME})
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert answer.body.endswith(b"data: [DONE]\n\n")
