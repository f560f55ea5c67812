"""What holds for the request bodies of every dialect: recorded ones are read as a peer read them, and no body breaks a reader."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.core import ChatRequest, CompletionRequest
from scaleout.dialects import DIALECTS
from scaleout.errors import BadRequest, InvalidField, RequestError

from .bodies import RICH

Json = Any
FAMILIES = ("smollm2", "qwen3", "llama31", "llama2", "deepseek_v3", "gemma3")
STRICTER = ("/chat/calls-bad-arguments",)
"""Recorded as accepted: arguments in the history that are no JSON. They are an error here, as they would be lost."""
LAXER = ("/error/chat-arguments-object", "/error/chat-user-content-null", "/error/chat-stop-five")
"""Recorded as schema failures: arguments as an object, null content, and a number of stop strings that render bounds."""


def recorded(shared: Path, family: str) -> Iterator[tuple[Any, dict[str, Json]]]:
    paths = {f"{dialect.PATH}/render": dialect for dialect in DIALECTS}
    with gzip.open(shared / "parity" / "render" / f"{family}.jsonl.gz", "rt") as lines:
        for line in lines:
            record = json.loads(line)
            if isinstance(record["request"], dict):
                yield paths[record["route"]], record


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_peer_accepted_is_read(shared_folder: Path, family: str) -> None:
    count = 0
    for dialect, record in recorded(shared_folder, family):
        if record["status"] != 200:
            continue
        count += 1
        if record["id"].endswith(STRICTER):
            with pytest.raises(BadRequest, match=r"messages\[\d\]\.tool_calls\[\d\]"):
                dialect.parse(record["request"])
            continue
        request = dialect.parse(record["request"])
        assert isinstance(request, ChatRequest | CompletionRequest), record["id"]
        answer = record["response"]
        first = answer[0] if isinstance(answer, list) else answer
        assert request.options.stream == first["stream"], record["id"]
        assert request.options.model == first["model"], record["id"]
        assert list(request.sampling.stop) == first["sampling_params"]["stop"], record["id"]
        if dialect.NAME != "responses":
            wanted = request.options.stream_options
            assert (first["stream_options"] is None) == (wanted is None), record["id"]
    assert count > 70


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_peer_refused_by_schema_is_refused(shared_folder: Path, family: str) -> None:
    """Refusals for other reasons (lengths, templates, vocabularies) are for later stages to make."""
    count = 0
    for dialect, record in recorded(shared_folder, family):
        if record["status"] != 400 or record["response"]["error"]["type"] != "Bad Request":
            continue
        if record["id"].endswith(LAXER):
            dialect.parse(record["request"])
            continue
        with pytest.raises(InvalidField if dialect.NAME != "responses" else BadRequest) as caught:
            dialect.parse(record["request"])
        count += 1
        assert caught.value.status == 400
        assert caught.value.param, record["id"]
    assert count > 2


@pytest.mark.parametrize("name", RICH)
def test_a_rich_request_is_read(name: str) -> None:
    dialect, body = RICH[name]
    before = copy.deepcopy(body)
    dialect.parse(body)
    assert body == before


wild = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**64)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "x", "type", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "text", "name", "role", "content", "function"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


@pytest.mark.parametrize("name", RICH)
@given(data=st.data())
def test_a_spoiled_request_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """Any value anywhere: the answer is a request, or a 400 that says where."""
    dialect, body = RICH[name]
    spoiled = copy.deepcopy(body)
    for place in data.draw(st.lists(st.sampled_from(list(places(body))), min_size=1, max_size=3)):
        *way, last = place
        holder = spoiled
        try:
            for key in way:
                holder = holder[key]
            if data.draw(st.booleans()):
                holder[last] = data.draw(wild)
            else:
                del holder[last]
        except (KeyError, IndexError, TypeError):
            continue
    try:
        request = dialect.parse(spoiled)
    except RequestError as error:
        assert (error.status, bool(error.message)) == (400, True)  # noqa: PT017 - some are read all the same
    else:
        assert isinstance(request, ChatRequest | CompletionRequest)


@pytest.mark.parametrize("name", ["chat", "messages"])
def test_ids_of_requests_are_made_of_what_the_caller_gave(name: str) -> None:
    dialect, body = RICH[name]
    request = dialect.parse({**body, "request_id": "mine"})
    assert dialect.name_request(request, "traced") == "chatcmpl-traced"
    named = dialect.name_request(request, None)
    assert named == "chatcmpl-mine" if name == "chat" else named.startswith("chatcmpl-")
    assert dialect.name_request(dialect.parse(body), None) != dialect.name_request(dialect.parse(body), None)


def test_ids_of_responses_are_taken_as_they_are() -> None:
    dialect, body = RICH["responses"]
    assert dialect.name_request(dialect.parse(body), "traced") == "resp_1"
    made = dialect.name_request(dialect.parse({**body, "request_id": None}), "traced")
    assert made.startswith("resp_")
    assert "traced" not in made
