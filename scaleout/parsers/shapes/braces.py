"""Arguments as `{key:value,…}` with a token as quotation mark, in which nothing is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from attrs import frozen

from scaleout.core import Json, Tool
from scaleout.parsers.schema import kinds_of
from scaleout.parsers.shapes.call import Unwritable, written_name
from scaleout.parsers.shapes.forms import (
    Form,
    any_number,
    either,
    free,
    maybe,
    members,
    pattern,
    schema,
    sequence,
    text,
)
from scaleout.parsers.shapes.schemas import choices_of, properties_of, relaxed, resolved

_KEY = re.compile(r"[^\s:,{}\[\]()<>|\"']+")
_FREE_KEY = "[A-Za-z_][A-Za-z0-9_]*"
_SCALARS = {"i": "integer", "n": "number", "b": "boolean", "z": "null"}
MAX_NESTING = 4
"""Of lists and objects; deeper ones are empty."""
MAX_UNTYPED = 2
"""The same where the schema does not say what they hold: such a form doubles with every level."""


@frozen
class BraceArguments:
    """`delimiter` stands on both sides of a string."""

    delimiter: str

    def write_name(self, name: str) -> str:
        return written_name(name, r"[^(\[]+")

    def form(self, tool: Tool) -> Form | None:
        properties, required, free_form = properties_of(tool)
        root = tool.parameters or {}
        if free_form:
            return self._free_members({}, root, MAX_UNTYPED)
        must: list[Form] = []
        may: list[Form] = []
        for key, given in properties.items():
            if _KEY.fullmatch(key):
                part = sequence([text(f"{key}:"), self._value(given, root, MAX_NESTING)])
                (must if key in required else may).append(part)
            elif key in required:
                raise Unwritable(f"the parameter {key!r} of {tool.name!r} cannot be written")
        return members(must, may, ",")

    def _value(self, given: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> Form:
        wanted = resolved(given, root)
        values = choices_of(wanted)
        if values is not None:
            return either([text(self._spell(value)) for value in values])
        options = wanted.get("anyOf") or wanted.get("oneOf")
        if isinstance(options, list) and all(isinstance(one, Mapping) for one in options):
            return either([self._value(one, root, depth) for one in options])
        kinds = kinds_of(wanted, root)
        if not kinds:
            kinds, depth = "abnosz", min(depth, MAX_UNTYPED)
        return either([self._literal(kind, wanted, root, depth) for kind in kinds])

    def _literal(self, kind: str, wanted: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> Form:
        if kind == "s":
            return free(self.delimiter, self.delimiter)
        if kind in _SCALARS:
            return schema({**relaxed(wanted), "type": _SCALARS[kind]})
        if depth <= 0:
            return text("[]" if kind == "a" else "{}")
        return self._list(wanted, root, depth) if kind == "a" else self._object(wanted, root, depth)

    def _list(self, wanted: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> Form:
        items = wanted.get("items")
        item = self._value(items if isinstance(items, Mapping) else {}, root, depth - 1)
        some = sequence([item, any_number(sequence([text(","), item]))])
        return sequence([text("["), some if wanted.get("minItems") else maybe(some), text("]")])

    def _object(self, wanted: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> Form:
        declared = wanted.get("properties")
        if isinstance(declared, Mapping) and declared:
            required: Sequence[str] = wanted.get("required") or ()
            must: list[Form] = []
            may: list[Form] = []
            for name, given in declared.items():
                key = str(name) if _KEY.fullmatch(str(name)) else self._spell(str(name))
                value = self._value(given if isinstance(given, Mapping) else {}, root, depth - 1)
                (must if name in required else may).append(sequence([text(f"{key}:"), value]))
            inner = members(must, may, ",")
        elif wanted.get("additionalProperties") is False:
            inner = None
        else:
            more = wanted.get("additionalProperties")
            inner = self._free_members(more if isinstance(more, Mapping) else {}, root, depth - 1)
        return sequence([text("{"), *([] if inner is None else [inner]), text("}")])

    def _free_members(self, given: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> Form:
        one = sequence([pattern(_FREE_KEY), text(":"), self._value(given, root, depth)])
        return maybe(sequence([one, any_number(sequence([text(","), one]))]))

    def _spell(self, value: Json) -> str:
        """A value that the schema lists: strings between delimiters, the rest as JSON without blanks."""
        if isinstance(value, str):
            return self.delimiter + value + self.delimiter
        if isinstance(value, list):
            return "[" + ",".join(map(self._spell, value)) + "]"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{self._spell(str(key))}:{self._spell(one)}" for key, one in value.items()) + "}"
        return json.dumps(value)
