"""Input items of the responses API → messages as templates know them (CONTRACT 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import evolve

from scaleout.codec import invalid
from scaleout.core import Json, Message, ToolCall
from scaleout.dialects.fields import read_text
from scaleout.dialects.messages_in import parse_arguments, read_content
from scaleout.dialects.responses_tools import PAYLOAD, flat_name
from scaleout.errors import BadRequest

ROLES = ("user", "assistant", "system", "developer")
_UNFINISHED = ("in_progress", "incomplete")
STATUSES = (*_UNFINISHED, "completed")

Item = Mapping[str, Json]


def read_input(value: Json, instructions: str | None, history: Sequence[Json] = ()) -> tuple[list[Message], bool]:
    """`instructions`, the items before and `input`, and whether the last message is to be continued instead of answered."""
    messages = [Message("system", instructions)] if instructions else []
    for i, item in enumerate(history):
        _add_item(messages, item, f"previous_response_id.{i}")
    if isinstance(value, str):
        return [*messages, Message("user", value)], False
    if not isinstance(value, list):
        raise invalid("body.input", "Input should be a valid string or list")
    for i, item in enumerate(value):
        _add_item(messages, item, f"body.input.{i}")
    last = value[-1] if value else {}
    unfinished = (last.get("type") or "message") in ("message", "reasoning") and last.get("status") in _UNFINISHED
    return messages, unfinished


def _add_item(messages: list[Message], item: Json, path: str) -> None:
    if not isinstance(item, dict):
        raise invalid(path, "Input should be a valid dictionary")
    kind = item.get("type")
    if kind is None:
        if "role" not in item:
            raise invalid(f"{path}.type", "Field required")
        kind = "message"
    add = _ADD.get(kind) if isinstance(kind, str) else None
    if add is None:
        raise BadRequest(f"Unsupported input item type: {kind} (parameter=input)", "input")
    of_an_answer = kind != "message" or isinstance(item.get("content"), list)
    if of_an_answer and item.get("status", "completed") not in (*STATUSES, None):
        raise invalid(f"{path}.status", "Input should be 'in_progress', 'completed' or 'incomplete'")
    add(messages, item, path)


def _add_message(messages: list[Message], item: Item, path: str) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        expected = "Input should be 'user', 'assistant', 'system' or 'developer'"
        raise invalid(f"{path}.role", "Field required" if role is None else expected)
    if content is None:
        raise invalid(f"{path}.content", "Field required")
    read = read_content(content, f"{path}.content", role)
    if role != "assistant":
        messages.append(Message(role, read))
        return
    if isinstance(read, list):
        # As the reference peer reads it: an assistant's message says one thing, its first part.
        read = read[0].text if read else ""
    if messages and _only_thinks(messages[-1]):
        messages[-1] = evolve(messages[-1], content=read)
    else:
        messages.append(Message("assistant", read))


def _only_thinks(message: Message) -> bool:
    return (
        message.role == "assistant" and message.reasoning is not None and not message.content and not message.tool_calls
    )


def _add_reasoning(messages: list[Message], item: Item, path: str) -> None:
    """A thought belongs to the message or the calls that follow it."""
    if item.get("encrypted_content") is not None:
        raise BadRequest("Encrypted content is not supported. (parameter=input)", "input")
    text = _first_text(item, "content", path)
    if text is None:
        text = _first_text(item, "summary", path)
    messages.append(Message("assistant", [], reasoning=text or ""))


def _first_text(item: Item, key: str, path: str) -> str | None:
    parts = item.get(key)
    if not parts:
        return None
    if not isinstance(parts, list) or not isinstance(parts[0], dict):
        raise invalid(f"{path}.{key}", "Input should be a valid list of dictionaries")
    return read_text(parts[0].get("text"), f"{path}.{key}.0.text")


def _add_function_call(messages: list[Message], item: Item, path: str) -> None:
    arguments = parse_arguments(item.get("arguments"))
    if arguments is None:
        where = f"{path.removeprefix('body.').replace('.', '[')}]"
        raise BadRequest(f"{where}: arguments is not a JSON object", f"{path}.arguments")
    _add_call(messages, item, arguments, path)


def _add_custom_call(messages: list[Message], item: Item, path: str) -> None:
    _add_call(messages, item, {PAYLOAD: read_text(item.get("input"), f"{path}.input")}, path)


def _add_call(messages: list[Message], item: Item, arguments: Mapping[str, Json], path: str) -> None:
    """A call belongs to the assistant's message right before it, where there is one."""
    call_id = read_text(item.get("call_id"), f"{path}.call_id")
    namespace = item.get("namespace")
    if namespace is not None:
        read_text(namespace, f"{path}.namespace")
    call = ToolCall(call_id, flat_name(read_text(item.get("name"), f"{path}.name"), namespace), arguments)
    if messages and messages[-1].role == "assistant":
        messages[-1] = evolve(messages[-1], tool_calls=[*messages[-1].tool_calls, call])
    else:
        messages.append(Message("assistant", [], tool_calls=[call]))


def _add_output(messages: list[Message], item: Item, path: str) -> None:
    output = item.get("output")
    if output is None:
        raise invalid(f"{path}.output", "Field required")
    call_id = read_text(item.get("call_id"), f"{path}.call_id")
    messages.append(Message("tool", read_content(output, f"{path}.output", "tool"), tool_call_id=call_id))


_ADD: Mapping[str, Callable[[list[Message], Item, str], None]] = {
    "message": _add_message,
    "reasoning": _add_reasoning,
    "function_call": _add_function_call,
    "function_call_output": _add_output,
    "custom_tool_call": _add_custom_call,
    "custom_tool_call_output": _add_output,
}
