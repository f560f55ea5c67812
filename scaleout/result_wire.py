"""Results of an engine, whole or one event at a time, read from JSON (CONTRACT 2.8, 6.3, 6.4). Written by hand for the sake of speed:

derender reads one for every chunk of every stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scaleout import codec
from scaleout.codec import Unfit, read_float, read_ids, read_int, read_object, read_str
from scaleout.core import (
    GenerateChunk,
    GenerateResponse,
    Json,
    PositionLogprobs,
    TokenDelta,
    TokenLogprob,
    Usage,
)

Read = Callable[[Json], Any]


def read_generate_response(body: Json, path: str = "body") -> GenerateResponse:
    """A result as an engine wrote it; missing keys have their defaults. Raises `InvalidField`."""
    return codec.structure(body, GenerateResponse, path)


def read_generate_chunk(body: Json, path: str = "body") -> GenerateChunk:
    """One event of an engine's stream. Raises `InvalidField`."""
    return codec.structure(body, GenerateChunk, path)


# ---------------------------------------------------------------------------------------------- log probabilities


def read_logprobs(value: Json) -> list[PositionLogprobs] | None:
    """The wire form of `wire.write_logprobs`; an entry without a top list has none."""
    content = read_object(value).get("content")
    if content is None:
        return None
    positions = []
    for i, entry in enumerate(codec.expect_list(content, ".content")):
        try:
            top = codec.expect_list(read_object(entry).get("top_logprobs") or [], ".top_logprobs")
            positions.append(PositionLogprobs(_read_logprob(entry), [_read_logprob(t) for t in top]))
        except Unfit as e:
            raise Unfit(str(e), f".content.{i}{e.path}") from None
    return positions


def _read_logprob(entry: Json) -> TokenLogprob:
    token_id = read_int(read_object(entry).get("token_id"))
    if token_id < 0:
        raise Unfit("Input should be greater than or equal to 0", ".token_id")
    rank = entry.get("rank")
    return TokenLogprob(token_id, read_float(entry.get("logprob")), None if rank is None else read_int(rank))


def read_prompt_logprobs(value: Json) -> list[dict[int, TokenLogprob] | None]:
    """The inverse of `wire.write_prompt_logprobs`."""
    positions: list[dict[int, TokenLogprob] | None] = []
    for i, entry in enumerate(codec.expect_list(value)):
        try:
            positions.append(None if entry is None else _read_prompt_position(entry))
        except Unfit as e:
            raise Unfit(str(e), f".{i}{e.path}") from None
    return positions


def _read_prompt_position(entry: Json) -> dict[int, TokenLogprob]:
    position = {}
    for key, one in read_object(entry).items():
        try:
            token_id = read_int(key)
            rank = read_object(one).get("rank")
            logprob = TokenLogprob(token_id, read_float(one.get("logprob")), None if rank is None else read_int(rank))
        except Unfit as e:
            raise Unfit(str(e), f".{key}") from None
        if token_id < 0:
            raise Unfit("Input should be greater than or equal to 0", f".{key}")
        position[token_id] = logprob
    return position


# ---------------------------------------------------------------------------------------------- choices, counts


def _read_stop_reason(value: Json) -> int | str:
    if type(value) in (int, str):
        return value  # type: ignore[no-any-return]
    raise Unfit("Input should be a valid integer or string")


def _read_usage(value: Json) -> Usage:
    given = read_object(value)
    counts: dict[str, Any] = {
        name: codec.read_member(given, name, read_int)
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
        if given.get(name) is not None
    }
    for detail, name in (("prompt_tokens_details", "cached_tokens"), ("completion_tokens_details", "reasoning_tokens")):
        told = given.get(detail)
        if isinstance(told, Mapping) and told.get(name) is not None:
            counts[name] = codec.read_member(told, name, read_int)
    for name, count in counts.items():
        if not 0 <= count < 2**53:
            raise Unfit("Input should be between 0 and 2^53", f".{name}")
    return Usage(**counts)


_CHOICE: Mapping[str, Read] = {
    "index": read_int,
    "token_ids": read_ids,
    "logprobs": read_logprobs,
    "finish_reason": read_str,
    "stop_reason": _read_stop_reason,
}

_RESULT: Mapping[str, Read] = {
    "request_id": read_str,
    "model": read_str,
    "created": read_int,
    "usage": _read_usage,
    "prompt_token_ids": read_ids,
    "prompt_logprobs": read_prompt_logprobs,
    "kv_transfer_params": read_object,
    "ec_transfer_params": read_object,
}

_CHUNK = {name: read for name, read in _RESULT.items() if name not in ("model", "created")}


def _read_known(wire: Json, known: Mapping[str, Read]) -> dict[str, Any]:
    """The members of an object that are known and not null, read."""
    values = {}
    for name, value in read_object(wire).items():
        read = known.get(name)
        if read is not None and value is not None:
            try:
                values[name] = read(value)
            except Unfit as e:
                raise Unfit(str(e), f".{name}{e.path}") from None
    return values


def _read_choices(wire: Json, default: Mapping[str, Json]) -> list[TokenDelta]:
    """`default`: what a choice has where it does not say otherwise."""
    given = read_object(wire).get("choices")
    choices = []
    for i, choice in enumerate(() if given is None else codec.expect_list(given, ".choices")):
        try:
            values = _read_known(choice, _CHOICE)
        except Unfit as e:
            raise Unfit(str(e), f".choices.{i}{e.path}") from None
        if default and "finish_reason" not in choice:
            values.update(default)
        choices.append(TokenDelta(values.pop("index", 0), values.pop("token_ids", []), **values))
    return choices


def _read_response(wire: Json, _: Any) -> GenerateResponse:
    if read_object(wire).get("output_mode", "tokens") != "tokens":
        raise Unfit("Input should be 'tokens': text cannot be derendered", ".output_mode")
    values = _read_known(wire, _RESULT)
    choices = _read_choices(wire, {"finish_reason": "stop"})
    return GenerateResponse(values.pop("request_id", ""), choices, **values)


def _read_chunk(wire: Json, _: Any) -> GenerateChunk:
    values = _read_known(wire, _CHUNK)
    return GenerateChunk(values.pop("request_id", None), _read_choices(wire, {}), **values)


codec.accept(GenerateResponse, _read_response)
codec.accept(GenerateChunk, _read_chunk)
