"""JSON schemas of what the routes take and give, made from the classes that read it and from answers themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from scaleout.core import AnswerHead, ChoiceAnswer, GenerateRequest, GenerateResponse, Json, TokenDelta, Usage
from scaleout.dialects import Dialect, chat, completions, messages, messages_request, responses, responses_request
from scaleout.wire import write_generate_response

Schema = dict[str, Json]

_SCALARS: Mapping[Any, Schema] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    Any: {},
}
_TEXT: Schema = {"type": "string"}
_OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def _one_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


_BLOCKS = _one_of(_TEXT, _OBJECTS)
_CHOICE = _one_of(_TEXT, {"type": "object"})
_MESSAGES: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"role": _TEXT, "content": _one_of(_TEXT, {"type": "array"}, {"type": "null"})},
    },
}

READ_BY_HAND: Mapping[str, dict[str, Schema]] = {
    "chat": {"messages": _MESSAGES, "tools": _OBJECTS, "tool_choice": _CHOICE},
    "completions": {
        "prompt": _one_of(_TEXT, {"type": "array", "items": _TEXT}, _IDS, {"type": "array", "items": _IDS}),
        "prompt_embeds": {},
    },
    "messages": {"messages": _MESSAGES, "system": _BLOCKS, "tools": _OBJECTS, "tool_choice": {"type": "object"}},
    "responses": {
        "input": _BLOCKS,
        "tools": _OBJECTS,
        "tool_choice": _CHOICE,
        "text": {"type": "object"},
        "previous_response_id": _TEXT,
        "prompt": {"type": "null"},
        "conversation": {"type": "null"},
    },
}
"""Fields that no class holds, since their readers name the place of a fault more exactly."""

REQUIRED: Mapping[str, Sequence[str]] = {
    "chat": ("messages",),
    "completions": ("prompt",),
    "messages": ("model", "messages", "max_tokens"),
    "responses": ("input",),
}
_BODIES: Mapping[str, type[Any]] = {
    "chat": chat.ChatBody,
    "completions": completions.CompletionBody,
    "messages": messages_request.MessagesBody,
    "responses": responses_request.ResponsesBody,
}
_ALSO: Mapping[str, Sequence[str]] = {"stop": ("string",)}
"""Other types that a field takes."""


def schema_of(kind: Any, named: dict[str, Schema]) -> Schema:
    """The schema of a type. Classes go into `named` and are referred to."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if origin is Annotated:
        return _IDS
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, UnionType):
        return _one_of(*(schema_of(one, named) for one in args))
    if attrs.has(kind):
        if kind.__name__ not in named:
            named[kind.__name__] = {}
            named[kind.__name__] = schema_of_class(kind, named)
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(args[1], named)}
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return {"type": "array", "items": schema_of(args[0], named)}
    raise TypeError(f"no schema for {kind}")


def schema_of_class(kind: type[Any], named: dict[str, Schema], leave_out: Iterable[str] = ()) -> Schema:
    """An attrs class as an object. What has a default may be left out, and null means the same."""
    hints = get_type_hints(kind, include_extras=True)
    properties: dict[str, Schema] = {}
    required = []
    for attribute in attrs.fields(kind):
        if attribute.name in leave_out:
            continue
        schema = schema_of(hints[attribute.name], named)
        if attribute.default is attrs.NOTHING:
            required.append(attribute.name)
        else:
            schema = _optional(schema, [*_ALSO.get(attribute.name, ()), "null"])
            if attribute.default is not None and isinstance(attribute.default, int | float | str):
                schema = {**schema, "default": attribute.default}
        properties[attribute.name] = schema
    wire: Schema = {"type": "object", "properties": properties}
    return {**wire, "required": required} if required else wire


def _optional(schema: Schema, others: Sequence[str]) -> Schema:
    choices = schema["anyOf"] if list(schema) == ["anyOf"] else [schema] if schema else []
    have = {one.get("type") for one in choices}
    more = [{"type": other} for other in others if other not in have]
    return _one_of(*choices, *more) if choices else {}


def request_schema(dialect: Dialect, named: dict[str, Schema]) -> Schema:
    """The body of one API: what its class reads and what is read by hand."""
    body = _BODIES[dialect.NAME]
    unread = {a.name for a in attrs.fields(body)} - (responses_request.READ if dialect is responses else dialect.FIELDS)
    schema = schema_of_class(body, named, leave_out=unread)
    required = REQUIRED[dialect.NAME]
    by_hand = {
        name: one if name in required else _optional(one, ["null"]) for name, one in READ_BY_HAND[dialect.NAME].items()
    }
    return {**schema, "properties": {**by_hand, **schema["properties"]}, "required": list(required)}


def generate_schema(named: dict[str, Schema]) -> Schema:
    """What render gives and an engine takes. Features have a wire form of their own, beside their classes."""
    schema = schema_of_class(GenerateRequest, named, leave_out=("trace_headers", "features"))
    schema["properties"]["features"] = _one_of({"type": "object"}, {"type": "null"})
    return schema


def answer_schema(dialect: Dialect) -> Schema:
    """From an answer: every key that there is, with the type of its value where it has one."""
    head = AnswerHead("id", 0, "model")
    answer = ChoiceAnswer(0, content="text", finish_reason="stop")
    return schema_like(dialect.response(head, None, [answer], Usage(1, 1)))


def result_schema() -> Schema:
    """An engine's result, likewise."""
    return schema_like(
        write_generate_response(GenerateResponse("id", [TokenDelta(0, [1], None, "stop")], "m", 0, Usage()))
    )


def schema_like(value: Json) -> Schema:
    """A schema that fits `value` and whatever else has its shape. Null says nothing about what else may stand there."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema_like(one) for key, one in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "items": schema_like(value[0])} if value else {"type": "array"}
    return {} if value is None else _SCALARS[type(value)]


def message_count_schema(named: dict[str, Schema]) -> Schema:
    """A message's request without what only its answer needs."""
    schema = request_schema(messages, named)
    return {**schema, "required": [name for name in schema["required"] if name != "max_tokens"]}
