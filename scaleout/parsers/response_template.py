"""Formats that a checkpoint brings along: its `response_template`, translated into ours, so that the same machine and laws hold.

Such a template describes fields by the markers around them, as literals or regular expressions. The expressions that occur are literals
with whitespace, alternatives and named groups in them; they are read as that, never run. What says more than that is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from scaleout.core import Json
from scaleout.parsers.bodies.braces import Braces
from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.bodies.pythonic import Pythonic
from scaleout.parsers.bodies.slots import Slots
from scaleout.parsers.bodies.tagged import Tagged
from scaleout.parsers.body import Body, Opening
from scaleout.parsers.format import Calls, Format, Thought

_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thoughts")
_TOKEN = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")

_PART = re.compile(
    r"(?P<space>\\s[*+?]?)"
    r"|\(\?P<(?P<name>[a-z_]+)>(?:\[(?:\\.|[^\]\\])+\]|\\.|\.)[*+]\??\)"
    r"|\(\?:(?P<either>[^()]*)\)"
    r"|\\(?P<escaped>[^A-Za-z0-9])"
    r"|(?P<plain>[^\\()\[\]{}.*+?^$|])"
)


@frozen
class Part:
    """A piece of an expression: literal text (several are alternatives), whitespace, or a named group."""

    texts: tuple[str, ...] = ()
    group: str = ""


def read_response_template(template: Mapping[str, Json]) -> Format:
    """The format that the template describes. Raises ValueError, naming the field, for what cannot be read while it streams."""
    fields = template.get("fields") if isinstance(template, Mapping) else None
    if not isinstance(fields, Mapping) or not all(isinstance(field, Mapping) for field in fields.values()):
        raise ValueError("response_template: fields must be an object of objects")
    thought = calls = None
    closers: list[str] = []
    for name, field in fields.items():
        where = f"response_template field {name!r}"
        if name in _THOUGHTS:
            thought = Thought(_words(field, "open", where), _words(field, "close", where), ends_at_call=False)
        elif name == "tool_calls":
            calls = _read_calls(field, where)
        elif name == "content" and "open" not in field and "open_pattern" not in field:
            closers += _words(field, "close", where) if "close" in field or "close_pattern" in field else ()
        else:
            raise ValueError(f"{where}: no such field is known")
    markers = [marker for part in (thought, calls) if part for marker in _markers(part)]
    tokens = tuple(dict.fromkeys(token for marker in markers for token in _TOKEN.findall(marker)))
    anchor = template.get("start_anchor")
    anchors = [anchor] if isinstance(anchor, str) else anchor if isinstance(anchor, list) else []
    turn = tuple(token for one in anchors if isinstance(one, str) for token in _TOKEN.findall(one)[:1])
    quotes = tuple(body.delimiter for body in (calls.openings if calls else ()) if isinstance(body, Braces))
    return Format("hf", thought, calls, tokens=tokens, required=quotes, end_tokens=tuple(closers), turn=turn)


def _markers(part: Thought | Calls) -> list[str]:
    if isinstance(part, Thought):
        return [*part.open, *part.close]
    delimiters = [body.delimiter for body in part.openings if isinstance(body, Braces)]
    return [*part.open, *part.close, *delimiters]


def _read_calls(field: Mapping[str, Json], where: str) -> Calls:
    opener, closer = _parts(field, "open", where), _parts(field, "close", where)
    arguments = field.get("content_args") or {}
    match field.get("content", "text"):
        case "json" if any(part.group for part in opener):
            return _named(opener, closer, arguments, where)
        case "json":
            name_key, argument_key, id_key = _keys(field, where)
            array = bool(field.get("transform_each"))
            body: Body = Objects(
                array="always" if array else "never",
                separators="," if array else "",
                stray="stray" if array else "content",
                name_key=name_key,
                argument_keys=(argument_key, *({"arguments", "parameters"} - {argument_key})),
                id_key=id_key,
            )
            return _calls(opener, closer, body, strays={"stray": ("]",)} if array else {})
        case "python-call-list":
            return _calls(opener, closer, Pythonic())
        case "xml-inline":
            return _tags(opener, closer, arguments, where)
        case other:
            raise ValueError(f"{where}: calls written as {other!r} cannot be read")


def _calls(opener: Sequence[Part], closer: Sequence[Part], body: Body, **more: Any) -> Calls:
    close = closer[-1].texts if closer else ()
    return Calls(open=dict.fromkeys(opener[0].texts, body), close=close, outer=close, **more)


def _named(opener: Sequence[Part], closer: Sequence[Part], arguments: Mapping[str, Json], where: str) -> Calls:
    """The name stands in the opener, the arguments follow: `<call>NAME<sep>{…}`."""
    match opener:
        case [Part(texts=[before]), Part(group="name"), *after] if len(after) <= 1:
            delimiters = arguments.get("string_delims") or []
            bare = bool(arguments.get("unquoted_keys"))
            if not delimiters and not bare:
                return _calls(
                    [Part((before,))], closer, Slots(name_end=after[0].texts if after else (), brace=not after)
                )
            if bare and len(delimiters) == 1 and len(set(delimiters[0])) == 1 and not after:
                token = _TOKEN.match(before)
                return _calls([Part((token[0] if token else before,))], closer, Braces(delimiter=delimiters[0][0]))
    raise ValueError(f"{where}: an opener or arguments of this shape cannot be read")


def _tags(opener: Sequence[Part], closer: Sequence[Part], arguments: Mapping[str, Json], where: str) -> Calls:
    """A wrapper, a call tag with the name, a tag for each parameter."""
    tag = _expression(str(arguments.get("tag_pattern", "")), f"{where} tag_pattern")
    values = [part for part in tag if part.texts or part.group]
    match opener, values, closer:
        case (
            [Part(texts=[wrapper]), Part(texts=[call]), Part(group="name"), Part(texts=[">"])],
            [
                Part(texts=[parameter]),
                Part(group="key"),
                Part(texts=[">"]),
                Part(group="value"),
                Part(texts=[parameter_end]),
            ],
            [Part(texts=[call_end]), Part(texts=[wrapper_end])],
        ):
            body = Tagged(call, call_end, parameter, parameter_end, trim=len(tag) > len(values))
            return Calls(
                open={wrapper: body},
                inner={call: Opening(body, "name")},
                close=(wrapper_end,),
                outer=(wrapper_end,),
            )
    raise ValueError(f"{where}: tags of this shape cannot be read")


def _keys(field: Mapping[str, Json], where: str) -> tuple[str, str, str]:
    """Which keys of a call object are its name, its arguments and its id."""
    transform = field.get("transform")
    function = transform.get("function") if isinstance(transform, Mapping) else transform
    if function in (None, "{content}"):
        return "name", "arguments", ""
    if isinstance(function, Mapping):
        found = [_key(function.get("name")), _key(function.get("arguments")), _key((transform or {}).get("id"))]
        if found[0] and found[1]:
            return found[0], found[1], found[2]
    raise ValueError(f"{where}: a transform of this shape cannot be read")


def _key(placeholder: Json) -> str:
    found = re.fullmatch(r"\{(?:content\.)?(\w+)\}", placeholder) if isinstance(placeholder, str) else None
    return found[1] if found else ""


# ---------------------------------------------------------------------------------------------- markers and expressions


def _words(field: Mapping[str, Json], key: str, where: str) -> tuple[str, ...]:
    """Markers that are nothing but words."""
    parts = _parts(field, key, where)
    if len(parts) != 1 or not parts[0].texts:
        raise ValueError(f"{where}: {key} must be a marker or a list of markers")
    return parts[0].texts


def _parts(field: Mapping[str, Json], key: str, where: str) -> list[Part]:
    """What stands at one side of a field, without whitespace, which is layout there."""
    literal, pattern = field.get(key), field.get(f"{key}_pattern")
    if isinstance(pattern, str):
        return [part for part in _expression(pattern, where) if part.texts or part.group]
    words = [literal] if isinstance(literal, str) else literal if isinstance(literal, list) else []
    if not all(isinstance(word, str) and word for word in words):
        raise ValueError(f"{where}: {key} must be a marker or a list of markers")
    return [Part(tuple(words))] if words else []


def _expression(pattern: str, where: str) -> list[Part]:
    """An expression as its parts; whitespace is a part without text."""
    parts: list[Part] = []
    at = 0
    while at < len(pattern):
        found = _PART.match(pattern, at)
        if found is None:
            raise ValueError(f"{where}: the expression {pattern!r} says more than can be read, at character {at}")
        at = found.end()
        if found["space"]:
            parts.append(Part())
        elif found["name"]:
            parts.append(Part(group=found["name"]))
        elif found["either"] is not None:
            choices = [_expression(choice, where) for choice in re.split(r"(?<!\\)\|", found["either"])]
            if any(len(choice) != 1 or not choice[0].texts for choice in choices):
                raise ValueError(f"{where}: the alternatives in {pattern!r} are no plain markers")
            parts.append(Part(tuple(text for choice in choices for text in choice[0].texts)))
        else:
            char = found["escaped"] or found["plain"]
            if parts and len(parts[-1].texts) == 1 and pattern[found.start() - 1] != ")":
                parts[-1] = Part((parts[-1].texts[0] + char,))
            else:
                parts.append(Part((char,)))
    return parts
