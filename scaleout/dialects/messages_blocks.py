"""Conversations in Anthropic's shape: messages of content blocks → messages as templates know them (CONTRACT 5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field

from scaleout.codec import invalid
from scaleout.core import Json, Message, Part, Tool, ToolCall
from scaleout.dialects.fields import read_text
from scaleout.dialects.messages_tools import ToolChange, apply_changes, read_change

ROLES = ("user", "assistant", "system")
BLOCKS = (
    *("text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking"),
    *("tool_addition", "tool_removal"),
)
BILLING = "x-anthropic-billing-header"
"""Begins a block that one client puts into its system prompt for its own bookkeeping, new on every request."""


@define
class Conversation:
    messages: list[Message] = field(factory=list)
    changes: list[ToolChange] = field(factory=list)

    def change_tools(self, tools: Sequence[Tool]) -> list[Tool]:
        """Raises `BadRequest` where the conversation changes a tool that nobody declared."""
        return apply_changes(tools, self.changes) if self.changes else list(tools)


def read_conversation(system: Json, messages: Json) -> Conversation:
    """`system` and `messages`. A message of several tool results becomes several messages; one without content, none."""
    conversation = Conversation()
    text = _read_system(system, "body.system")
    if text:
        conversation.messages.append(Message("system", text))
    if not isinstance(messages, list):
        raise invalid("body.messages", "Input should be a valid list")
    for i, message in enumerate(messages):
        _read_message(conversation, message, f"body.messages.{i}")
    return conversation


def _read_system(value: Json, path: str) -> str:
    """A string, or blocks whose texts follow each other without a break."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise invalid(path, "Input should be a valid string or list")
    return "".join(_system_text(_read_block(one, f"{path}.{i}"), f"{path}.{i}") for i, one in enumerate(value))


def _system_text(block: Mapping[str, Json], path: str) -> str:
    text = _text_of(block, path) if block["type"] == "text" else ""
    return "" if text.startswith(BILLING) else text


def _read_message(conversation: Conversation, value: Json, path: str) -> None:
    if not isinstance(value, dict):
        raise invalid(path, "Input should be a valid dictionary or object to extract fields from")
    role, content = value.get("role"), value.get("content")
    if role not in ROLES:
        raise invalid(
            f"{path}.role", "Field required" if role is None else "Input should be 'user', 'assistant' or 'system'"
        )
    if content is None:
        raise invalid(f"{path}.content", "Field required")
    if isinstance(content, str):
        if content or role != "system":
            conversation.messages.append(Message(role, content))
        return
    if not isinstance(content, list):
        raise invalid(f"{path}.content", "Input should be a valid string or list")
    blocks = [(_read_block(one, f"{path}.content.{i}"), f"{path}.content.{i}") for i, one in enumerate(content)]
    if role == "system":
        _add_system(conversation, blocks)
        return
    for block, _ in blocks:
        if block["type"] in ("tool_addition", "tool_removal"):
            raise invalid(path, f'Value error, {block["type"]} blocks are only allowed in messages with role "system"')
    if role == "user":
        _add_user(conversation, blocks)
    else:
        _add_assistant(conversation, blocks)


_Blocks = Sequence[tuple[Mapping[str, Json], str]]


def _read_block(value: Json, path: str) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise invalid(path, "Input should be a valid dictionary or object to extract fields from")
    kind = value.get("type")
    if kind not in BLOCKS:
        expected = ", ".join(map(repr, BLOCKS[:-1])) + f" or {BLOCKS[-1]!r}"
        raise invalid(f"{path}.type", "Field required" if kind is None else f"Input should be {expected}")
    return value


def _text_of(block: Mapping[str, Json], path: str, key: str = "text") -> str:
    return "" if block.get(key) is None else read_text(block[key], f"{path}.{key}")


def _add_system(conversation: Conversation, blocks: _Blocks) -> None:
    text = ""
    for block, path in blocks:
        if block["type"] in ("tool_addition", "tool_removal"):
            conversation.changes.append(read_change(block, path))
        else:
            text += _system_text(block, path)
    if text:
        conversation.messages.append(Message("system", text))


def _add_user(conversation: Conversation, blocks: _Blocks) -> None:
    """Results of tools come before everything else that the message says: they answer the turn before it."""
    parts: list[Part] = []
    for block, path in blocks:
        if block["type"] == "tool_result":
            _add_result(conversation, block, path)
        elif block["type"] == "text":
            parts += _text_part(block, path)
        elif block["type"] == "image":
            parts += _image_part(block, path)
    if parts:
        conversation.messages.append(Message("user", _collapse(parts)))


def _add_assistant(conversation: Conversation, blocks: _Blocks) -> None:
    parts: list[Part] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block, path in blocks:
        kind = block["type"]
        if kind == "text":
            parts += _text_part(block, path)
        elif kind == "image":
            parts += _image_part(block, path)
        elif kind == "thinking":
            thoughts.append(_text_of(block, path, "thinking"))
        elif kind == "tool_use":
            calls.append(_read_call(block, path))
        elif kind == "tool_result":
            parts.append(Part("text", f"Tool result: {_read_result(block, path)[0]}"))
    reasoning = "".join(thoughts) or None
    conversation.messages.append(Message("assistant", _collapse(parts), reasoning=reasoning, tool_calls=calls))


def _collapse(parts: list[Part]) -> str | list[Part]:
    """One text is a string; several stay apart, for templates to join in their own way."""
    return parts[0].text or "" if len(parts) == 1 and parts[0].type == "text" else parts


def _text_part(block: Mapping[str, Json], path: str) -> list[Part]:
    text = _text_of(block, path)
    return [Part("text", text)] if text else []


def _image_part(block: Mapping[str, Json], path: str) -> list[Part]:
    source = block.get("source")
    if not isinstance(source, dict):
        raise invalid(f"{path}.source", "Field required" if source is None else "Input should be a valid dictionary")
    if source.get("type") == "url":
        url = read_text(source.get("url"), f"{path}.source.url")
    elif source.get("type") == "base64":
        media_type = read_text(source.get("media_type") or "image/jpeg", f"{path}.source.media_type")
        url = f"data:{media_type};base64,{read_text(source.get('data'), f'{path}.source.data')}"
    else:
        raise invalid(f"{path}.source.type", "Input should be 'base64' or 'url'")
    return [Part("image_url", None, {"image_url": {"url": url}})]


def _read_call(block: Mapping[str, Json], path: str) -> ToolCall:
    call_id, arguments = block.get("id"), block.get("input")
    if call_id is not None:
        read_text(call_id, f"{path}.id")
    if arguments is not None and not isinstance(arguments, dict):
        raise invalid(f"{path}.input", "Input should be a valid dictionary")
    return ToolCall(call_id, read_text(block.get("name"), f"{path}.name"), arguments or {})


def _add_result(conversation: Conversation, block: Mapping[str, Json], path: str) -> None:
    """A result is a message of the tool; what a tool message cannot hold follows it in messages of its own."""
    text, images, references = _read_result(block, path)
    call_id = _text_of(block, path, "tool_use_id")
    conversation.messages.append(Message("tool", text, tool_call_id=call_id))
    if images:
        conversation.messages.append(Message("user", images))
    if references:
        conversation.messages.append(Message("tool", references, tool_call_id=call_id))


def _read_result(block: Mapping[str, Json], path: str) -> tuple[str, list[Part], list[Part]]:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or "", [], []
    if not isinstance(content, list):
        raise invalid(f"{path}.content", "Input should be a valid string or list")
    texts: list[str] = []
    images: list[Part] = []
    references: list[Part] = []
    for i, one in enumerate(content):
        at = f"{path}.content.{i}"
        if not isinstance(one, dict):
            raise invalid(at, "Input should be a valid dictionary")
        if one.get("type") == "text":
            texts.append(_text_of(one, at))
        elif one.get("type") == "image":
            images += _image_part(one, at)
        elif one.get("type") == "tool_reference":
            references.append(
                Part("tool_reference", None, {"name": read_text(one.get("tool_name"), f"{at}.tool_name")})
            )
        else:
            raise invalid(f"{at}.type", "Input should be 'text', 'image' or 'tool_reference'")
    return "\n".join(texts), images, references
