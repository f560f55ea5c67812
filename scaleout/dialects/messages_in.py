"""OpenAI conversations: message and tool objects → nouns (CONTRACT 3.4, 3.6). The tolerant reading is ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from scaleout.codec import invalid
from scaleout.core import Json, Message, Part, Tool, ToolCall, ToolChoice
from scaleout.dialects.fields import read_text
from scaleout.errors import BadRequest

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
MEDIA_KEYS = {
    "image_url": "image_url",
    "input_image": "input_image",
    "image_embeds": "image_embeds",
    "image_pil": "image_pil",
    "audio_url": "audio_url",
    "input_audio": "input_audio",
    "audio_embeds": "audio_embeds",
    "video_url": "video_url",
    "video_embeds": "video_embeds",
    "prompt_embeds": "prompt_embeds",
}
OTHER_PARTS = frozenset((*MEDIA_KEYS, "tool_reference"))
_KEPT = ("name", "tool_call_id")


def read_messages(value: Json, path: str = "body.messages") -> list[Message]:
    """The `messages` list. Raises `InvalidField` with the path of the first fault; an empty list is refused."""
    if not isinstance(value, list):
        raise invalid(path, "Input should be a valid list")
    if not value:
        raise BadRequest(
            "Cannot apply chat template to an empty conversation. Provide at least one message.", "messages"
        )
    return [read_message(m, f"{path}.{i}") for i, m in enumerate(value)]


def read_message(value: Json, path: str) -> Message:
    if not isinstance(value, dict):
        raise invalid(path, "Input should be a valid dictionary")
    role = value.get("role")
    if not isinstance(role, str) or not role:
        raise invalid(f"{path}.role", "Field required" if role is None else "Input should be a valid string")
    reasoning = value.get("reasoning")
    if reasoning is None:
        reasoning = value.get("reasoning_content")
    if reasoning is not None:
        read_text(reasoning, f"{path}.reasoning")
    for key in _KEPT:
        if value.get(key) is not None:
            read_text(value[key], f"{path}.{key}")
    extra: dict[str, Json] = {}
    if isinstance(value.get("task"), str):
        extra["task"] = value["task"]
    if role == "developer" and value.get("tools") is not None:
        extra["tools"] = value["tools"]
    return Message(
        role=role,
        content=read_content(value["content"], f"{path}.content", role) if "content" in value else "",
        name=value.get("name"),
        reasoning=reasoning,
        tool_calls=read_tool_calls(value.get("tool_calls"), path),
        tool_call_id=value.get("tool_call_id"),
        extra=extra,
    )


def read_content(value: Json, path: str, role: str) -> str | list[Part] | None:
    """Text, parts, or null. Null is kept for assistants alone: templates tell "no content" from "empty" there."""
    if isinstance(value, str):
        return value
    if value is None:
        return None if role == "assistant" else ""
    if not isinstance(value, list):
        raise invalid(path, "Input should be a valid string or list")
    return [read_part(p, f"{path}.{i}") for i, p in enumerate(value)]


def read_part(value: Json, path: str) -> Part:
    """One content part; a bare string is a text part, and a missing type is told from the one key that names it."""
    if isinstance(value, str):
        return Part("text", value)
    if not isinstance(value, dict):
        raise invalid(path, "Input should be a valid dictionary")
    kind = value.get("type")
    if kind is None:
        kind = next((k for k in ("text", *MEDIA_KEYS) if value.get(k) is not None), None)
        if kind is None:
            raise invalid(f"{path}.type", "Field required")
    if not isinstance(kind, str):
        raise invalid(f"{path}.type", "Input should be a valid string")
    if kind in TEXT_PARTS:
        key = TEXT_PARTS[kind]
        if value.get(key) is None:
            raise invalid(f"{path}.{key}", "Field required")
        extra = {k: v for k, v in value.items() if k not in ("type", key)}
        return Part("text", read_text(value[key], f"{path}.{key}"), extra)
    if kind in OTHER_PARTS:
        return Part(kind, None, {k: v for k, v in value.items() if k != "type"})
    raise invalid(f"{path}.type", f"Unknown part type: {kind}")


def read_tool_calls(value: Json, path: str) -> list[ToolCall]:
    """An assistant's calls. Arguments may be JSON text or an object; text that is no JSON object names its message."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(f"{path}.tool_calls", "Input should be a valid list")
    calls = []
    for i, call in enumerate(value):
        at = f"{path}.tool_calls.{i}"
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
            raise invalid(at, "Input should be an object of type function with a `function` object")
        if call.get("type", "function") != "function":
            raise invalid(f"{at}.type", "Input should be 'function'")
        function = call["function"]
        if call.get("id") is not None:
            read_text(call["id"], f"{at}.id")
        name = read_text(function.get("name"), f"{at}.function.name")
        calls.append(ToolCall(call.get("id"), name, read_arguments(function.get("arguments"), at)))
    return calls


def read_arguments(value: Json, path: str) -> Mapping[str, Json]:
    """A call's arguments as an object. Raises `BadRequest` that names the message and the call."""
    arguments = parse_arguments(value)
    if arguments is not None:
        return arguments
    where = path.removeprefix("body.").replace(".tool_calls.", "].tool_calls[").replace("messages.", "messages[") + "]"
    raise BadRequest(f"{where}: function.arguments is not a JSON object", f"{path}.function.arguments")


def parse_arguments(value: Json) -> Mapping[str, Json] | None:
    """Arguments as an object, keys in the order sent; None when they are none.

    The json module keeps `2.0` apart from `2`, and any integer whole.
    """
    if isinstance(value, dict):
        return value
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if not isinstance(value, str):
        return None
    try:
        arguments = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def read_tools(value: Json, path: str = "body.tools") -> list[Tool] | None:
    """The `tools` list, None when absent. An empty list is refused in the peer's words."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise invalid(path, "Input should be a valid list")
    if not value:
        raise BadRequest(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.", "tools"
        )
    return [_read_tool(t, f"{path}.{i}") for i, t in enumerate(value)]


def _read_tool(value: Json, path: str) -> Tool:
    if not isinstance(value, dict):
        raise invalid(path, "Input should be a valid dictionary")
    if value.get("type", "function") != "function":
        raise invalid(f"{path}.type", "Input should be 'function'")
    function = value.get("function")
    if not isinstance(function, dict):
        raise invalid(
            f"{path}.function", "Field required" if function is None else "Input should be a valid dictionary"
        )
    name = function.get("name")
    if not isinstance(name, str):
        raise invalid(f"{path}.function.name", "Field required" if name is None else "Input should be a valid string")
    description, parameters = function.get("description"), function.get("parameters")
    if description is not None:
        read_text(description, f"{path}.function.description")
    if parameters is not None and not isinstance(parameters, dict):
        raise invalid(f"{path}.function.parameters", "Input should be a valid dictionary")
    strict = function.get("strict")
    defer = value.get("defer_loading", function.get("defer_loading"))
    for key, flag in (("strict", strict), ("defer_loading", defer)):
        if flag is not None and not isinstance(flag, bool):
            raise invalid(f"{path}.function.{key}", "Input should be a valid boolean")
    return Tool(name, description, parameters, strict, defer)


def read_tool_choice(body: Mapping[str, Json], tools: Sequence[Tool] | None) -> ToolChoice | None:
    """`tool_choice`: absent means auto with tools and none without; null is no choice at all."""
    if "tool_choice" not in body:
        return ToolChoice("auto") if tools else ToolChoice("none")
    value = body["tool_choice"]
    if value is None:
        return None
    if value == "none":
        return ToolChoice("none")
    if not tools:
        raise BadRequest("When using `tool_choice`, `tools` must be set. (parameter=tool_choice)", "tool_choice")
    if value == "auto":
        return ToolChoice("auto")
    if value == "required":
        return ToolChoice("required")
    if not isinstance(value, dict):
        raise BadRequest(
            f'Invalid value for `tool_choice`: {value}! Only named tools, "none", "auto" or "required" are supported.',
            "tool_choice",
        )
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise BadRequest(
            "Expected field `function` with a `name` in `tool_choice`. (parameter=tool_choice)", "tool_choice"
        )
    if all(tool.name != name for tool in tools):
        raise BadRequest(
            "The tool specified in `tool_choice` does not match any of the specified `tools` (parameter=tool_choice)",
            "tool_choice",
        )
    return ToolChoice("named", name)
