"""Messages and tools as templates see them: plain dicts, normalised the way the models' templates expect (CONTRACT 3.4-3.6)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from scaleout.core import Json, Message, Part, Tool, ToolCall
from scaleout.errors import BadRequest
from scaleout.render.chat_template import ChatTemplate
from scaleout.render.content_format import ContentFormat, asks_for_null_content, detect_content_format
from scaleout.render.media_parts import MODALITY_OF, UNSERVED
from scaleout.render.placement import MediaParts

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
MEDIA_PARTS = frozenset((*MODALITY_OF, *UNSERVED))

_BILLING = "x-anthropic-billing-header"


@frozen
class TemplateView:
    """What a template's source says about the messages it wants."""

    content_format: ContentFormat
    knows_developer: bool
    null_content: bool
    """It tests content for none. Others would print the word, so null becomes empty for them."""
    reads_thinking: bool

    @classmethod
    def of(cls, template: ChatTemplate, content_format: ContentFormat | None = None) -> TemplateView:
        """`content_format` None looks at the template."""
        return cls(
            content_format or detect_content_format(template.tree),
            "developer" in template.constants,
            asks_for_null_content(template.tree),
            "thinking" in template.attributes,
        )


class CallArguments(dict[str, Json]):
    """A call's arguments: an object to loop over, and JSON text where a template joins them to text with `+`.

    Some templates (DeepSeek's) were written for arguments that are still text; with a plain dict they fail.
    """

    def __add__(self, other: Any) -> Any:
        return json.dumps(self, ensure_ascii=False) + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return other + json.dumps(self, ensure_ascii=False) if isinstance(other, str) else NotImplemented


def messages_to_dicts(
    messages: Sequence[Message], view: TemplateView, model_name: str, media: MediaParts | None = None
) -> list[dict[str, Any]]:
    """Every message as a dict with role and content first. `media` gathers what is no text.

    Raises `BadRequest` for media that the model cannot see; a text model has no `media`.
    """
    dicts = [_message_to_dict(message, view, model_name, media, i) for i, message in enumerate(messages)]
    if not view.knows_developer and any(d["role"] == "developer" for d in dicts):
        return _fold_developer(dicts, view)
    return dicts


def tools_to_dicts(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools in the key order that models were trained on; description and parameters are there even when null."""
    dicts = []
    for tool in tools:
        function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        if tool.strict is not None:
            function["strict"] = tool.strict
        wrapped: dict[str, Any] = {"type": "function", "function": function}
        if tool.defer_loading is not None:
            function["defer_loading"] = wrapped["defer_loading"] = tool.defer_loading
        dicts.append(wrapped)
    return dicts


def _message_to_dict(
    message: Message, view: TemplateView, model_name: str, media: MediaParts | None, index: int
) -> dict[str, Any]:
    role = message.role
    result: dict[str, Any] = {"role": role, "content": _content(message, view, model_name, media, index)}
    if message.name is not None:
        result["name"] = message.name
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        result["tool_calls"] = [_call_to_dict(call) for call in message.tool_calls]
    if message.reasoning is not None:
        result["reasoning"] = message.reasoning
        if role == "assistant":
            result["reasoning_content"] = message.reasoning
            if view.reads_thinking:
                result["thinking"] = message.reasoning
    for key, value in message.extra.items():
        result.setdefault(key, value)
    return result


def _call_to_dict(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": CallArguments(call.arguments)}
    if call.id is None:
        return {"type": "function", "function": function}
    return {"id": call.id, "type": "function", "function": function}


def _content(message: Message, view: TemplateView, model_name: str, media: MediaParts | None, index: int) -> Any:
    content = message.content
    as_parts = view.content_format == "openai"
    if isinstance(content, str):
        if message.role == "system" and content.startswith(_BILLING):
            content = content.partition("\n")[2]
        if as_parts and message.role != "tool":
            return [{"type": "text", "text": content}]
        return content
    if content is None:
        return None if view.null_content else [] if as_parts else ""
    parts = [_part_to_dict(part, model_name, media, index, i) for i, part in enumerate(content)]
    if message.role == "system":
        parts = _without_billing(parts)
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if as_parts and message.role != "tool":
        return parts
    if media is not None and any(part["type"] in media.multimodal.kinds for part in parts):
        return media.as_text(parts)
    if message.role == "tool" and len(texts) < len(parts):
        return parts
    return "\n".join(filter(None, texts))


def _part_to_dict(part: Part, model_name: str, media: MediaParts | None, message: int, index: int) -> dict[str, Any]:
    if part.type in TEXT_PARTS:
        return {"type": "text", "text": part.text or "", **part.data}
    if part.type in MEDIA_PARTS:
        if media is None:
            raise BadRequest(f"{model_name} is not a multimodal model", "messages")
        return media.take(part, f"messages.{message}.content.{index}")
    if part.type == "tool_reference":
        return {"type": part.type, **part.data}
    raise BadRequest(f"Unknown part type: {part.type}", "messages")


def _without_billing(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """System text without the line that one client puts there for its own bookkeeping, new on every request."""
    kept = []
    for part in parts:
        if part["type"] == "text" and part["text"].startswith(_BILLING):
            rest = part["text"].partition("\n")[2]
            if not rest:
                continue
            part = {**part, "text": rest}
        kept.append(part)
    return kept


def _fold_developer(dicts: list[dict[str, Any]], view: TemplateView) -> list[dict[str, Any]]:
    """Developer messages become system messages, and all of those one message in front: few templates take more."""
    texts = []
    rest = []
    for message in dicts:
        if message["role"] in ("developer", "system"):
            content = message["content"]
            texts.append(content if isinstance(content, str) else "\n".join(part["text"] for part in content or ()))
        else:
            rest.append(message)
    text = "\n\n".join(texts)
    content = [{"type": "text", "text": text}] if view.content_format == "openai" else text
    return [{"role": "system", "content": content}, *rest]


def count_items(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> int:
    """Messages, calls and tools: what templates loop over."""
    return len(messages) + sum(len(message.tool_calls) for message in messages) + len(tools or ())


def origins(messages: Sequence[Message], dicts: Sequence[Mapping[str, Any]]) -> list[int]:
    """Which of `messages` each of the dicts came from. One that was folded together counts as its first."""
    if len(messages) == len(dicts) and messages[0].role == dicts[0]["role"]:
        return list(range(len(dicts)))
    folded = [i for i, message in enumerate(messages) if message.role in ("developer", "system")]
    return [folded[0], *(i for i in range(len(messages)) if i not in folded)]


def lead_with_system(messages: Sequence[Message]) -> list[Message]:
    """The same conversation with all its system messages joined into one at its head, for templates that take no other."""
    texts = [text_of(message.content) for message in messages if message.role == "system"]
    return [Message("system", "\n\n".join(filter(None, texts))), *(m for m in messages if m.role != "system")]


def text_of(content: str | Sequence[Part] | None) -> str:
    """The text of a content, its parts joined as string templates see them."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content if part.text is not None)
