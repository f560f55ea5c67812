"""The official clients, reading what the dialects wrote: strictly, by their own models, and joined, by their own code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, get_args

from anthropic import types as anthropic_types
from anthropic.lib.streaming._messages import accumulate_event
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types import responses as openai_types
from pydantic import BaseModel, TypeAdapter

Json = Any


def valid_message(message: Json) -> anthropic_types.Message:
    return anthropic_types.Message.model_validate(message)


@cache
def _anthropic_events() -> TypeAdapter[Any]:
    return TypeAdapter(anthropic_types.RawMessageStreamEvent)


def read_anthropic_stream(events: Sequence[Json]) -> anthropic_types.Message:
    """The message that the client makes of its events, each of them valid."""
    snapshot = None
    buffers: dict[int, bytes] = {}
    for event in events:
        read = _anthropic_events().validate_python(event)
        snapshot = accumulate_event(event=read, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    return valid_message(snapshot.model_dump())


def valid_response(response: Json) -> openai_types.Response:
    return openai_types.Response.model_validate(response)


@cache
def _openai_events() -> dict[str, type[BaseModel]]:
    members = get_args(get_args(openai_types.ResponseStreamEvent)[0])
    return {get_args(member.model_fields["type"].annotation)[0]: member for member in members}


def read_openai_stream(events: Sequence[Json]) -> tuple[Any, openai_types.Response]:
    """What the client has joined from the deltas, and the last response, each event valid."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    read: Any = None
    for event in events:
        read = _openai_events()[event["type"]].model_validate(event)
        state.handle_event(read)
    return state._ResponseStreamState__current_snapshot, read.response  # type: ignore[attr-defined]
