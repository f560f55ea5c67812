"""The token wire: what one stage writes, the next one reads; what a peer writes is read as it was meant."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict, evolve, fields
from hypothesis import given
from hypothesis import strategies as st

from scaleout import codec
from scaleout.core import (
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
    Json,
    PositionLogprobs,
    SamplingParams,
    StreamOptions,
    TokenDelta,
    TokenLogprob,
    Usage,
)
from scaleout.errors import BadRequest, InvalidField
from scaleout.result_wire import read_generate_chunk, read_generate_response, read_prompt_logprobs
from scaleout.wire import (
    check_cache_salt,
    read_generate_request,
    read_logit_bias,
    write_generate_chunk,
    write_generate_request,
    write_generate_response,
    write_prompt_logprobs,
    write_sampling_params,
    write_usage,
)

ids = st.lists(st.integers(0, 200_000), max_size=6)
numbers = st.floats(-1e6, 1e6)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
objects = st.dictionaries(words, st.integers(0, 9) | words | st.none(), max_size=3)

params = st.builds(
    SamplingParams,
    n=st.integers(1, 5),
    presence_penalty=st.floats(-2, 2),
    temperature=st.floats(0.01, 2),
    top_p=st.floats(0.1, 1),
    top_k=st.integers(-1, 50),
    min_p=st.floats(0, 1),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(words, max_size=3),
    stop_token_ids=ids,
    ignore_eos=st.booleans(),
    max_tokens=st.none() | st.integers(1, 100) | st.just(16),
    min_tokens=st.integers(0, 4),
    logprobs=st.none() | st.integers(-1, 20),
    prompt_logprob_token_ids=st.none() | st.lists(ids, max_size=2),
    skip_special_tokens=st.booleans(),
    output_kind=st.sampled_from([0, 1, 2]),
    skip_clone=st.booleans(),
    structured_outputs=st.none() | st.fixed_dictionaries({"json": objects}),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 999), st.floats(-100, 100), max_size=3),
    bad_words=st.lists(words, max_size=2),
    extra_args=st.none() | objects,
)
requests = st.builds(
    GenerateRequest,
    request_id=words,
    token_ids=st.lists(st.integers(0, 200_000), min_size=1, max_size=6),
    token_offsets=st.none() | st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=2), max_size=3),
    sampling_params=params,
    model=st.none() | words | st.just(""),
    reasoning_ended=st.none() | st.booleans(),
    stream=st.booleans(),
    stream_options=st.none() | st.builds(StreamOptions, st.booleans(), st.booleans()),
    cache_salt=st.none() | st.sampled_from(["a", "tenant-7"]),
    priority=st.integers(-(2**63), 2**63 - 1),
    kv_transfer_params=st.none() | objects,
    assistant_tokens_mask=st.none() | st.lists(st.integers(0, 1), max_size=3),
)

logprobs = st.builds(TokenLogprob, st.integers(0, 9), st.floats(-20, 0), st.none() | st.integers(1, 9))
positions = st.builds(PositionLogprobs, logprobs, st.lists(logprobs, max_size=2))
prompt_logprobs = st.lists(logprobs, max_size=3).map(lambda own: [None, {one.token_id: one for one in own}])
choices = st.builds(
    TokenDelta,
    index=st.integers(0, 3),
    token_ids=ids,
    logprobs=st.none() | st.lists(positions, max_size=2),
    finish_reason=st.sampled_from(["stop", "length", "abort"]),
    stop_reason=st.none() | st.integers(0, 9) | words,
)
usages = st.builds(
    Usage,
    *(st.integers(0, 999), st.integers(0, 999)),
    cached_tokens=st.none() | st.integers(0, 9),
    reasoning_tokens=st.none() | st.integers(0, 9),
)
responses = st.builds(
    GenerateResponse,
    request_id=words,
    choices=st.lists(choices, max_size=3),
    model=st.none() | words,
    created=st.none() | st.integers(0, 2**40),
    usage=st.none() | usages,
    prompt_token_ids=st.none() | ids,
    prompt_logprobs=st.none() | prompt_logprobs,
    kv_transfer_params=st.none() | objects,
    ec_transfer_params=st.none() | objects,
)


def over_the_wire(value: Json) -> Json:
    return codec.loads(codec.dumps(value))


def plain(noun: Any) -> Json:
    """A noun as JSON, so that lists and tuples compare equal."""
    return over_the_wire(asdict(noun))


# ---------------------------------------------------------------------------------------------- requests


@given(requests)
def test_a_request_survives_the_wire(request: GenerateRequest) -> None:
    read = read_generate_request(over_the_wire(write_generate_request(request)))
    assert plain(read) == plain(request)


@given(requests)
def test_every_key_is_written_and_extensions_only_where_asked_for(request: GenerateRequest) -> None:
    wire = write_generate_request(evolve(request, assistant_tokens_mask=None))
    not_on_the_wire = {"assistant_tokens_mask", "spans", "derender_state", "trace_headers"}
    assert list(wire) == [a.name for a in fields(GenerateRequest) if a.name not in not_on_the_wire]
    assert "max_tokens" in wire["sampling_params"]


@given(requests)
def test_the_trace_is_no_part_of_a_body(request: GenerateRequest) -> None:
    traced = evolve(request, trace_headers={"traceparent": "00-1-2-01"})
    assert write_generate_request(traced) == write_generate_request(request)
    assert read_generate_request({**write_generate_request(request), "trace_headers": {"a": "b"}}).trace_headers is None


@given(params)
def test_greedy_requests_carry_no_cut_offs(given_params: SamplingParams) -> None:
    wire = write_sampling_params(evolve(given_params, temperature=0.0))
    assert not {"top_p", "top_k", "min_p"} & set(wire)


@pytest.mark.parametrize(
    ("wire", "limit"),
    [
        ({}, None),
        ({"skip_clone": True}, 16),
        ({"max_tokens": None}, None),
        ({"max_tokens": 16}, 16),
        ({"max_tokens": "3"}, 3),
    ],
)
def test_a_limit_that_is_absent_is_read_as_its_writer_meant_it(wire: Json, limit: int | None) -> None:
    """A peer's render leaves out a limit of 16 and marks what it wrote; other writers that say nothing want no limit."""
    assert read_generate_request({"token_ids": [1], "sampling_params": wire}).sampling_params.max_tokens == limit


def test_a_request_needs_little() -> None:
    request = read_generate_request({"token_ids": [1, 2], "sampling_params": {"stop": "x", "logit_bias": {"5": 200}}})
    assert (request.request_id, request.stream, request.output_mode) == ("", False, "tokens")
    assert request.sampling_params == SamplingParams(stop=["x"], logit_bias={5: 100.0}, max_tokens=None)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"token_ids": []}, "body.token_ids"),
        ({"token_ids": None}, "body.token_ids"),
        ({"token_ids": [1, -1]}, "body.token_ids.1"),
        ({"token_ids": [[1]]}, "body.token_ids.0"),
        ({"token_ids": [1.5]}, "body.token_ids.0"),
        ({"sampling_params": None}, "body.sampling_params"),
        ({"sampling_params": []}, "body.sampling_params"),
        ({"sampling_params": {"n": "two"}}, "body.sampling_params.n"),
        ({"sampling_params": {"stop": ["a", 1]}}, "body.sampling_params.stop.1"),
        ({"sampling_params": {"stop_token_ids": [-1]}}, "body.sampling_params.stop_token_ids.0"),
        ({"sampling_params": {"logit_bias": {"x": 1}}}, "body.sampling_params.logit_bias.x"),
        ({"sampling_params": {"logit_bias": {"1": "x"}}}, "body.sampling_params.logit_bias.1"),
        ({"sampling_params": {"logit_bias": []}}, "body.sampling_params.logit_bias"),
        ({"priority": 2**63}, "body.priority"),
        ({"priority": "high"}, "body.priority"),
        ({"output_mode": "words"}, "body.output_mode"),
        ({"stream_options": []}, "body.stream_options"),
        ({"features": {}, "content_parts": []}, "body"),
    ],
)
def test_a_request_that_makes_no_sense_is_named_by_its_path(change: dict[str, Json], path: str) -> None:
    with pytest.raises(InvalidField) as caught:
        read_generate_request({"token_ids": [1], "sampling_params": {}, **change})
    assert caught.value.param == path


@pytest.mark.parametrize("salt", ["", "x" * 129, "a/b", "a\\b", "a@b", "a\0b"])
def test_salts_that_could_name_a_file_are_refused(salt: str) -> None:
    with pytest.raises(BadRequest, match="cache_salt") as caught:
        read_generate_request({"token_ids": [1], "sampling_params": {}, "cache_salt": salt})
    assert caught.value.param == "cache_salt"
    check_cache_salt("x" * 128)


def test_biases_are_clamped() -> None:
    assert read_logit_bias({"1": 1e9, "2": "-1e9", "3": 0.5}) == {1: 100.0, 2: -100.0, 3: 0.5}


@pytest.mark.parametrize("family", ["smollm2", "qwen3", "llama31", "llama2", "deepseek_v3", "gemma3"])
def test_requests_that_a_peer_rendered_are_read(shared_folder: Path, family: str) -> None:
    """And written again they say the same: what the peer left out, and what it wrote for itself, is known."""
    count = 0
    with gzip.open(shared_folder / "parity" / "render" / f"{family}.jsonl.gz", "rt") as lines:
        for line in lines:
            record = json.loads(line)
            if record["status"] != 200:
                continue
            answer = record["response"]
            for wire in answer if isinstance(answer, list) else [answer]:
                count += 1
                again = over_the_wire(write_generate_request(read_generate_request(wire)))
                theirs, ours = wire.pop("sampling_params"), again.pop("sampling_params")
                assert again == wire, record["id"]
                for unknown in ("watermarking", "routed_experts_prompt_start"):
                    theirs.pop(unknown, None)
                assert ours == {"max_tokens": 16, **theirs}, record["id"]
    assert count > 70


# ---------------------------------------------------------------------------------------------- results


@given(responses)
def test_a_result_survives_the_wire(response: GenerateResponse) -> None:
    read = read_generate_response(over_the_wire(write_generate_response(response)))
    assert plain(read) == plain(response)


@given(responses.map(lambda r: r.choices), usages)
def test_a_chunk_survives_the_wire(given_choices: list[TokenDelta], usage: Usage) -> None:
    for chunk in (
        *(GenerateChunk("r", [choice], usage, [1, 2], None, {"a": 1}, {"b": 2}) for choice in given_choices),
        GenerateChunk("r", [], usage),
        GenerateChunk("r", []),
    ):
        read = read_generate_chunk(over_the_wire(write_generate_chunk(chunk, 7)))
        assert plain(read) == plain(chunk)


def test_a_result_needs_little() -> None:
    response = read_generate_response({"choices": [{"token_ids": [5]}], "unknown": 1})
    assert response == GenerateResponse("", [TokenDelta(0, [5], finish_reason="stop")])
    assert (
        read_generate_response({"choices": [{"token_ids": [], "finish_reason": None}]}).choices[0].finish_reason is None
    )
    chunk = read_generate_chunk({"choices": [{"index": 2}]})
    assert chunk == GenerateChunk(None, [TokenDelta(2, [])])


def test_keys_stand_in_the_order_of_the_wire() -> None:
    response = GenerateResponse("r", [TokenDelta(0, [1, 2], finish_reason="stop")], usage=Usage(3, 2))
    wire = write_generate_response(response)
    assert list(wire) == [
        "request_id",
        "model",
        "created",
        "usage",
        "prompt_logprobs",
        "prompt_token_id_logprobs",
        "prompt_token_ids",
        "mm_placeholders",
        "metrics",
        "kv_transfer_params",
        "ec_transfer_params",
        "output_mode",
        "choices",
    ]
    (choice,) = wire["choices"]
    assert list(choice) == [
        "index",
        "finish_reason",
        "stop_reason",
        "token_ids",
        "routed_experts",
        "sampling_mask",
        "weight_versions",
        "logprobs",
    ]
    assert choice["weight_versions"] == [{"version": "default", "start": 0, "end": 2}]


def test_a_stream_says_once_what_a_peer_loses_there() -> None:
    chunk = GenerateChunk("r", [TokenDelta(0, [1])], None, [7], [None], {"a": 1}, {"b": 2})
    wire = write_generate_chunk(chunk)
    assert {"prompt_token_ids", "prompt_logprobs", "kv_transfer_params", "ec_transfer_params"} < set(wire)
    assert "weight_versions" not in wire["choices"][0]
    assert set(write_generate_chunk(GenerateChunk("r", [TokenDelta(0, [1])]))) == {
        "request_id",
        "usage",
        "output_mode",
        "choices",
    }
    last = GenerateChunk("r", [TokenDelta(0, [1], finish_reason="stop")])
    assert write_generate_chunk(last, 9)["choices"][0]["weight_versions"][0]["end"] == 9


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"choices": 5}, "body.choices"),
        ({"choices": [5]}, "body.choices.0"),
        ({"choices": [{"index": "a", "token_ids": [1]}]}, "body.choices.0.index"),
        ({"choices": [{"token_ids": [-1]}]}, "body.choices.0.token_ids.0"),
        ({"choices": [{"token_ids": [1], "stop_reason": []}]}, "body.choices.0.stop_reason"),
        ({"choices": [{"token_ids": [1], "stop_reason": True}]}, "body.choices.0.stop_reason"),
        ({"choices": [{"token_ids": [1], "logprobs": []}]}, "body.choices.0.logprobs"),
        ({"choices": [{"token_ids": [1], "logprobs": {"content": 5}}]}, "body.choices.0.logprobs.content"),
        ({"choices": [{"token_ids": [1], "logprobs": {"content": [{}]}}]}, "body.choices.0.logprobs.content.0"),
        ({"choices": [], "prompt_logprobs": [None, {"x": {}}]}, "body.prompt_logprobs.1.x"),
        ({"choices": [], "prompt_logprobs": [None, {"-1": {"logprob": 0}}]}, "body.prompt_logprobs.1.-1"),
        ({"choices": [], "usage": {"prompt_tokens": -1}}, "body.usage.prompt_tokens"),
        ({"choices": [], "usage": {"prompt_tokens": "x"}}, "body.usage.prompt_tokens"),
        ({"choices": [], "usage": []}, "body.usage"),
        ({"choices": [], "output_mode": "text"}, "body.output_mode"),
    ],
)
def test_a_result_that_makes_no_sense_is_named_by_its_path(body: Json, path: str) -> None:
    with pytest.raises(InvalidField) as caught:
        read_generate_response(body)
    assert caught.value.param == path


def test_infinite_log_probabilities_are_written_as_numbers() -> None:
    position = PositionLogprobs(
        TokenLogprob(1, -math.inf, 0), [TokenLogprob(1, -math.inf, 0), TokenLogprob(2, math.nan)]
    )
    response = GenerateResponse(
        "r", [TokenDelta(0, [1], [position])], prompt_logprobs=[None, {1: TokenLogprob(1, -math.inf)}]
    )
    wire = over_the_wire(write_generate_response(response))
    (entry,) = wire["choices"][0]["logprobs"]["content"]
    assert entry == {
        "token_id": 1,
        "logprob": -9999.0,
        "rank": None,
        "top_logprobs": [
            {"token_id": 1, "logprob": -9999.0, "rank": None},
            {"token_id": 2, "logprob": -9999.0, "rank": None},
        ],
    }
    assert wire["prompt_logprobs"] == [None, {"1": {"logprob": -9999.0, "rank": None, "decoded_token": None}}]


@given(prompt_logprobs)
def test_prompt_logprobs_survive_the_wire(given_logprobs: list[dict[int, TokenLogprob] | None]) -> None:
    wire = over_the_wire(write_prompt_logprobs(given_logprobs, lambda token_id: f"<{token_id}>"))
    assert read_prompt_logprobs(wire) == given_logprobs
    for position in wire[1:]:
        assert all(entry["decoded_token"] == f"<{token_id}>" for token_id, entry in position.items())


@pytest.mark.parametrize(
    ("usage", "details", "wire"),
    [
        (
            Usage(3, 2),
            True,
            {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}
            | {"prompt_tokens_details": None, "completion_tokens_details": None},
        ),
        (Usage(3, 2), False, {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}),
        (
            Usage(3, 2, 1, 0),
            False,
            {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}
            | {"prompt_tokens_details": {"cached_tokens": 1}, "completion_tokens_details": {"reasoning_tokens": 0}},
        ),
    ],
)
def test_usage_shows_details_where_they_were_counted(usage: Usage, details: bool, wire: Json) -> None:
    assert write_usage(usage, details) == wire
