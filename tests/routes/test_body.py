"""Bodies that are no JSON object within the bounds: one error shape, the path in it, and no work done."""

from __future__ import annotations

import gzip
import json
import string
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from serving import Server, read_answer

from scaleout.errors import InvalidField
from scaleout.routes import body as body_module
from scaleout.routes.answers import json_response
from scaleout.routes.body import parse_object, read_json

from .conftest import Serve


async def mirror(request: web.Request) -> web.Response:
    return json_response(await read_json(request))


@pytest.fixture
def server(serve: Serve) -> Iterator[Server]:
    return serve(endpoint=mirror, limits={"max_body_bytes": 10_000, "max_json_depth": 16})


@pytest.mark.parametrize("media_type", ["application/json", "Application/JSON; charset=utf-8", "application/json;x=y"])
def test_json_comes_through(server: Server, media_type: str) -> None:
    answer = server.post("/test", {"a": [1, None, "ü"]}, {"Content-Type": media_type})
    assert (answer.status, answer.json) == (200, {"a": [1, None, "ü"]})


def test_the_last_of_two_equal_keys_wins(server: Server) -> None:
    assert server.post("/test", b'{"a": 1, "a": 2}').json == {"a": 2}


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
def test_another_media_type_is_refused_with_the_peers_words(server: Server, media_type: str) -> None:
    answer = server.post("/test", b"{}", {"Content-Type": media_type})
    assert answer.status == 400
    assert answer.error == {
        "message": "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
        "type": "Bad Request",
        "param": None,
        "code": 400,
    }


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_a_compressed_body_is_refused_and_never_inflated(server: Server, encoding: str) -> None:
    answer = server.post("/test", gzip.compress(b'{"a": "' + b" " * 5_000_000 + b'"}'), {"Content-Encoding": encoding})
    assert answer.status == 400
    assert "Content-Encoding" in answer.error["message"]


@pytest.mark.parametrize(
    ("sent", "param", "says"),
    [
        (b"", "body", "Field required"),
        (b"  \n", "body", "Field required"),
        (b"null", "body", "Field required"),
        (b"[1, 2]", "body", "valid dictionary"),
        (b'"text"', "body", "valid dictionary"),
        (b"7", "body", "valid dictionary"),
        (b"true", "body", "valid dictionary"),
        (b'{"a": }', "body.6", "character 6"),
        (b'{"a": NaN}', "body.6", "character 6"),
        (b'{"a": Infinity}', "body.6", "character 6"),
        (b'{"a": -Infinity}', "body.7", "character 7"),
        (b'{"a": 1} x', "body.9", "character 9"),
        (b'{"a": 01}', None, "JSON decode error"),
        (b'{"a": "\\ud800"}', None, "JSON decode error"),
        (b'{"a": "\xff"}', None, "JSON decode error"),
        (b"\xef\xbb\xbf{}", None, "JSON decode error"),
        ('{"a": 1}'.encode("utf-16"), None, "JSON decode error"),
        (b'{"a": ' + b"[" * 17 + b"]" * 17 + b"}", "body", "deeper than 16"),
        (b"[" * 5000 + b"]" * 5000, None, "1 validation error"),
        (b'{"a":' * 1200 + b"1" + b"}" * 1200, None, "1 validation error"),
    ],
)
def test_what_is_no_json_object_is_refused_with_its_place(
    server: Server, sent: bytes, param: str | None, says: str
) -> None:
    answer = server.post("/test", sent)
    assert answer.status == 400
    assert answer.error["type"] == "Bad Request"
    assert says in answer.error["message"]
    if param is None:
        assert answer.error["param"].startswith("body")
    else:
        assert answer.error["param"] == param
        assert param in answer.error["message"]


def test_a_body_may_be_as_large_as_the_limit_and_not_a_byte_more(server: Server) -> None:
    fits = b'{"a":"' + b"x" * (10_000 - 8) + b'"}'
    assert server.post("/test", fits).status == 200
    answer = server.post("/test", fits + b" ")
    assert answer.status == 413
    assert "10000 bytes" in answer.error["message"]


def test_an_announced_size_is_refused_before_the_body_comes(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(
            b"POST /test HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{"
        )
        assert read_answer(connection).error["code"] == 413


def test_a_chunked_body_is_cut_off_at_the_limit(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(
            b"POST /test HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"1000\r\n" + b" " * 0x1000 + b"\r\n" + b"2000\r\n" + b" " * 0x2000 + b"\r\n"
        )  # fmt: skip
        assert read_answer(connection).error["code"] == 413


def test_a_chunked_body_within_the_limit_is_read(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(
            b"POST /test HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"5\r\n{\"a\":\r\n2\r\n1}\r\n0\r\n\r\n"
        )  # fmt: skip
        assert read_answer(connection).json == {"a": 1}


def test_a_body_that_stops_half_way_gives_its_place_back(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "SLOW_BODY_AFTER", 0.2)
    server = serve(endpoint=mirror, limits={"max_concurrent_work": 1})
    with server.connect() as connection:
        connection.sendall(
            b"POST /test HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
        )
        assert read_answer(connection).error["code"] == 408
    assert server.post("/test", {}).status == 200


def test_a_body_that_is_badly_framed_is_a_bad_request(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(
            b"POST /test HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"zz\r\n{}\r\n0\r\n\r\n"
        )
        assert read_answer(connection).status == 400


def test_expecting_to_continue_works_and_other_expectations_are_refused(server: Server) -> None:
    head = (
        b"POST /test HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nExpect: %b\r\n\r\n"
    )
    with server.connect() as connection:
        connection.sendall(head % b"100-Continue")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        assert read_answer(connection).json == {}
    with server.connect() as connection:
        connection.sendall(head % b"miracles")
        assert read_answer(connection).error["code"] == 417


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4), st.integers(1, 6))
def test_every_object_within_the_depth_is_read_and_none_beyond_it(value: dict[str, Any], limit: int) -> None:
    data = json.dumps(value).encode()
    if depth(value) <= limit:
        assert parse_object(data, limit) == value
    else:
        with pytest.raises(InvalidField, match="nested deeper"):
            parse_object(data, limit)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4), st.integers(2, 6), st.integers(495, 510))
def test_depth_beside_a_long_list(value: dict[str, Any], limit: int, length: int) -> None:
    body = {**value, "ids": [*range(length), value]}
    data = json.dumps(body).encode()
    if depth(body) <= limit:
        assert parse_object(data, limit) == body
    else:
        with pytest.raises(InvalidField, match="nested deeper"):
            parse_object(data, limit)


def fault_of(data: bytes) -> InvalidField | None:
    try:
        assert isinstance(parse_object(data, 16), dict)
    except InvalidField as fault:
        return fault
    return None


@given(st.binary(max_size=60) | st.text(alphabet=string.printable + "{}[]:,\"'\\", max_size=60).map(str.encode))
def test_no_bytes_at_all_raise_anything_but_a_named_fault(data: bytes) -> None:
    fault = fault_of(data)
    assert fault is None or (fault.param or "").startswith("body")
