"""The words of structural tags, as engines read them: each function gives one form."""

from __future__ import annotations

from collections.abc import Sequence

from scaleout.core import Json

Form = dict[str, Json]


def text(value: str) -> Form:
    return {"type": "const_string", "value": value}


def pattern(expression: str) -> Form:
    return {"type": "regex", "pattern": expression}


def schema(value: Json) -> Form:
    return {"type": "json_schema", "json_schema": value}


def sequence(parts: Sequence[Form]) -> Form:
    return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": list(parts)}


def either(options: Sequence[Form]) -> Form:
    return options[0] if len(options) == 1 else {"type": "or", "elements": list(options)}


def maybe(form: Form) -> Form:
    return {"type": "optional", "content": form}


def any_number(form: Form) -> Form:
    return {"type": "star", "content": form}


def tag(begin: str, content: Form, end: str) -> Form:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def free(begin: str, end: str, excludes: Sequence[str] = ()) -> Form:
    """Any text between `begin` and the first `end` that holds none of `excludes`."""
    return tag(begin, {"type": "any_text", "excludes": list(excludes)}, end)


MAX_FIRST = 30
"""Optional members that may come first: the form grows with their square."""


def members(required: Sequence[Form], optional: Sequence[Form], comma: str) -> Form | None:
    """All of the required and any of the optional members, in this order, with commas between; None where there are none at all."""

    def after(parts: Sequence[Form]) -> list[Form]:
        return [maybe(sequence([text(comma), part])) for part in parts]

    if required:
        first = [part for one in required for part in (text(comma), one)][1:]
        return sequence([*first, *after(optional)])
    if not optional:
        return None
    starts = [sequence([part, *after(optional[at + 1 :])]) for at, part in enumerate(optional[:MAX_FIRST])]
    return maybe(either(starts))
