"""What a kept response answers, as the list of items that `GET /v1/responses/{id}/input_items` shows page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaleout.core import Json
from scaleout.errors import BadRequest

PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


def list_items(
    items: Sequence[Mapping[str, Json]], response_id: str, after: str | None, limit: int, oldest: bool
) -> Json:
    """One page of `items`, behind the item whose id is `after`. `oldest`: first, else the newest.

    Raises `BadRequest` for an unknown `after`.
    """
    shown = [show_item(item, i, response_id) for i, item in enumerate(items)]
    if not oldest:
        shown.reverse()
    start = 0
    if after is not None:
        places = [i for i, item in enumerate(shown) if item["id"] == after]
        if not places:
            raise BadRequest(f"after: this response has no input item '{after}'", "after")
        start = places[0] + 1
    page = shown[start : start + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + limit < len(shown),
    }


def show_item(item: Mapping[str, Json], index: int, response_id: str) -> dict[str, Json]:
    """An item in the long form of the API: with an id, a type, a status, and parts in place of a bare text."""
    kind = item.get("type") or "message"
    name = f"{PREFIXES.get(kind, 'item')}_{response_id.removeprefix('resp_')}_in_{index}"
    shown: dict[str, Json] = {**item, "id": item.get("id") or name, "type": kind}
    if kind == "message":
        text = shown.get("content")
        if isinstance(text, str):
            said = shown.get("role") == "assistant"
            part = (
                {"type": "output_text", "text": text, "annotations": []}
                if said
                else {"type": "input_text", "text": text}
            )
            shown["content"] = [part]
    shown["status"] = item.get("status") or "completed"
    return shown
