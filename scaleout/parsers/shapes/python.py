"""Arguments as Python writes them: `key=value, …`, each value a literal."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from attrs import frozen

from scaleout.core import Json, Tool
from scaleout.parsers.schema import kinds_of
from scaleout.parsers.shapes.call import Unwritable, written_name
from scaleout.parsers.shapes.forms import Form, any_number, either, maybe, members, pattern, schema, sequence, text
from scaleout.parsers.shapes.schemas import choices_of, properties_of, relaxed, resolved

_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_KEY = re.compile(r"[^\W\d]\w*")
_SINGLE = r"'([^'\\\x00-\x09\x0b-\x1f]|\\[\\'\"nrt])*'"
_WORDS = {"b": ("True", "False", "true", "false"), "z": ("None", "null")}
_CONSTANTS = {True: ("True", "true"), False: ("False", "false"), None: ("None", "null")}
_SCALARS = {"s": "string", "i": "integer", "n": "number", "b": "boolean", "z": "null"}
_LIMITS = ("minLength", "maxLength")
MAX_NESTING = 5
"""Of lists and dicts; deeper ones are empty."""
MAX_UNTYPED = 2
"""The same where the schema does not say what they hold: such a form doubles with every level."""


@frozen
class PythonArguments:
    """Keyword arguments between parentheses, which the shape of the call brings."""

    def write_name(self, name: str) -> str:
        return written_name(name, _NAME)

    def form(self, tool: Tool) -> Form | None:
        properties, required, free_form = properties_of(tool)
        root = tool.parameters or {}
        if free_form:
            one = sequence([pattern("[A-Za-z_][A-Za-z0-9_]*"), text("="), _value({}, root, MAX_UNTYPED)])
            return maybe(sequence([one, any_number(sequence([text(", "), one]))]))
        must: list[Form] = []
        may: list[Form] = []
        for key, given in properties.items():
            if _KEY.fullmatch(key):
                part = sequence([text(f"{key}="), _value(given, root, MAX_NESTING)])
                (must if key in required else may).append(part)
            elif key in required:
                raise Unwritable(f"the parameter {key!r} of {tool.name!r} cannot be written")
        return members(must, may, ", ")


def _value(given: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> Form:
    """A literal of any type that the schema allows, strings in either quotes."""
    wanted = resolved(given, root)
    values = choices_of(wanted)
    if values is not None:
        return either([text(one) for value in values for one in _spellings(value)])
    options = wanted.get("anyOf") or wanted.get("oneOf")
    if isinstance(options, list) and all(isinstance(one, Mapping) for one in options):
        return either([_value(one, root, depth) for one in options])
    kinds = kinds_of(wanted, root)
    if not kinds:
        kinds, depth = "abnosz", min(depth, MAX_UNTYPED)
    return either([form for kind in kinds for form in _literals(kind, wanted, root, depth)])


def _literals(kind: str, wanted: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> list[Form]:
    if kind in _WORDS:
        return [text(word) for word in _WORDS[kind]]
    if kind in "in":
        return [schema({**relaxed(wanted), "type": _SCALARS[kind]})]
    if kind == "s":
        limited = any(limit in wanted for limit in _LIMITS)
        return [schema({**relaxed(wanted), "type": "string"}), *([] if limited else [pattern(_SINGLE)])]
    if depth <= 0:
        return [text("[]" if kind == "a" else "{}")]
    return [_list(wanted, root, depth) if kind == "a" else _dict(wanted, root, depth)]


def _list(wanted: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> Form:
    items = wanted.get("items")
    item = _value(items if isinstance(items, Mapping) else {}, root, depth - 1)
    some = sequence([item, any_number(sequence([text(", "), item]))])
    return sequence([text("["), some if wanted.get("minItems") else maybe(some), text("]")])


def _dict(wanted: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> Form:
    declared = wanted.get("properties")
    if not isinstance(declared, Mapping) or not declared:
        more = wanted.get("additionalProperties")
        if more is False:
            return text("{}")
        key = either([schema({"type": "string"}), pattern(_SINGLE)])
        one = sequence([key, text(": "), _value(more if isinstance(more, Mapping) else {}, root, depth - 1)])
        inner: Form | None = maybe(sequence([one, any_number(sequence([text(", "), one]))]))
    else:
        required: Sequence[str] = wanted.get("required") or ()
        must: list[Form] = []
        may: list[Form] = []
        for name, given in declared.items():
            key = either([text(one) for one in _spellings(str(name))])
            value = _value(given if isinstance(given, Mapping) else {}, root, depth - 1)
            (must if name in required else may).append(sequence([key, text(": "), value]))
        inner = members(must, may, ", ")
    return sequence([text("{"), *([] if inner is None else [inner]), text("}")])


def _spellings(value: Json) -> list[str]:
    """A value that the schema lists, in Python's words and in JSON's."""
    if value is None or isinstance(value, bool):
        return list(_CONSTANTS[value])
    written = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and not re.search(r"['\\\x00-\x1f]", value):
        return [written, f"'{value}'"]
    return [written]
