"""JSON types of a tool's parameters, from its schema. Formats without types in their text (FORMATS 3.5) need nothing else of a tool.

A set of types is a string of letters: s string, i integer, n number, b boolean, o object, a array, z null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaleout.core import Json, Tool

_LETTERS = {"string": "s", "integer": "i", "number": "n", "boolean": "b", "object": "o", "array": "a", "null": "z"}
_PYTHON = {str: "s", int: "i", float: "n", bool: "b", dict: "o", list: "a", type(None): "z"}
_DEPTH = 8


def parameter_kinds(tools: Sequence[Tool], strings: bool) -> dict[str, dict[str, str]]:
    """Per tool the types of its parameters; without `strings`, those that are nothing but a string are left out."""
    kinds = {}
    for tool in tools:
        schema = tool.parameters or {}
        properties = schema.get("properties")
        found = {}
        if isinstance(properties, Mapping):
            for name, value in properties.items():
                letters = kinds_of(value, schema)
                if letters and (strings or letters != "s"):
                    found[str(name)] = letters
        if found:
            kinds[tool.name] = found
    return kinds


def kinds_of(schema: Json, root: Json, depth: int = 0) -> str:
    """All types that a schema allows: of `type`, `enum`, `const`, the alternatives and local references, taken together."""
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return ""
    letters = set()
    declared = schema.get("type")
    for name in [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []:
        letters.add(_LETTERS.get(name, "") if isinstance(name, str) else "")
    values = schema.get("enum")
    for value in [*(values if isinstance(values, list) else []), *([schema["const"]] if "const" in schema else [])]:
        letters.add(_PYTHON.get(type(value), ""))
    for word in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(word)
        for alternative in alternatives if isinstance(alternatives, list) else []:
            letters |= set(kinds_of(alternative, root, depth + 1))
    if isinstance(schema.get("$ref"), str):
        letters |= set(kinds_of(_local(schema["$ref"], root), root, depth + 1))
    return "".join(sorted(letters))


def _local(reference: str, root: Json) -> Json:
    """What a reference like `#/$defs/Place` points to, or None."""
    here = root
    for part in reference.removeprefix("#/").split("/") if reference.startswith("#/") else [""]:
        here = here.get(part) if isinstance(here, Mapping) else None
    return here
