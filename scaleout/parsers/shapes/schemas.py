"""JSON schemas of tools, made such that an engine can follow them. What a schema says beyond that is left out, not refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaleout.core import Json, Tool

Schema = dict[str, Any]

ANY_OBJECT: Schema = {"type": "object"}
MAX_DEPTH = 24
MAX_LENGTH = 1000
"""Of strings and lists: the automata of longer bounds are large."""

_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")
_BARE = "[^<]*"


def arguments_schema(tool: Tool) -> Schema:
    """What the arguments of a tool's call must be: its schema if it is strict, else what engines surely can follow of it."""
    given = tool.parameters
    if given is None:
        return ANY_OBJECT
    wanted = dict(given) if tool.strict else relaxed(given)
    return wanted if "type" in wanted or "$ref" in wanted else {**wanted, "type": "object"}


def relaxed(schema: Mapping[str, Json]) -> Schema:
    """The part of a schema that every engine can follow; it allows all that the schema allows."""
    found = _relaxed(schema, schema, 0)
    for word in ("$defs", "definitions"):
        named = schema.get(word)
        if isinstance(named, Mapping):
            found[word] = {name: _relaxed(part, schema, 1) for name, part in named.items()}
    return found


def _relaxed(schema: Json, root: Mapping[str, Json], depth: int) -> Schema:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return {}

    def part(value: Json) -> Schema:
        return _relaxed(value, root, depth + 1)

    found: Schema = {}
    declared = schema.get("type")
    types = [one for one in ([declared] if isinstance(declared, str) else declared or []) if one in _TYPES]
    if types:
        found["type"] = types[0] if len(types) == 1 else types
    for word in ("enum", "const"):
        if word in schema and (word == "const" or (isinstance(schema[word], list) and schema[word])):
            found[word] = schema[word]
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        found["properties"] = {str(name): part(value) for name, value in properties.items()}
    required = schema.get("required")
    if isinstance(required, list):
        found["required"] = [name for name in required if isinstance(name, str)]
    more = schema.get("additionalProperties")
    if more is not None:
        found["additionalProperties"] = more if isinstance(more, bool) else part(more)
    if isinstance(schema.get("items"), Mapping):
        found["items"] = part(schema["items"])
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        found["anyOf"] = [part(one) for one in options]
    elif isinstance(same := schema.get("allOf"), list) and len(same) == 1:
        found["allOf"] = [part(same[0])]
    if isinstance(link := schema.get("$ref"), str) and target(link, root) is not None:
        found["$ref"] = link
    return found | _bounds(schema)


def _bounds(schema: Mapping[str, Json]) -> Schema:
    """Limits of numbers and sizes, where there are values between them."""

    def given(word: str, most: float) -> bool:
        value = schema.get(word)
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= most

    found = {word: schema[word] for word in _NUMBERS if given(word, 1e15)}
    found |= {word: schema[word] for word in _COUNTS if given(word, MAX_LENGTH) and schema[word] >= 0}
    for low, high in (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems")):
        if found.get(low, 0) > found.get(high, float("inf")):
            del found[low], found[high]
    return found


def target(link: str, root: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """What a local reference like `#/$defs/Place` points to; None for any other."""
    if link == "#":
        return root
    here: Json = root
    for name in link.removeprefix("#/").split("/") if link.startswith("#/") else [""]:
        here = here.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(here, Mapping) else None
    return here if isinstance(here, Mapping) else None


def properties_of(tool: Tool) -> tuple[Mapping[str, Mapping[str, Json]], Sequence[str], bool]:
    """A tool's parameters with their schemas, the names of those that must be there, and whether others may be too.

    Others may only where the schema declares none at all.
    """
    root = tool.parameters or {}
    declared = root.get("properties")
    found = {str(name): value if isinstance(value, Mapping) else {} for name, value in (declared or {}).items()}
    required = [name for name in root.get("required") or () if isinstance(name, str)]
    free = tool.parameters is not None and declared is None and root.get("additionalProperties") is not False
    return {**found, **{name: {} for name in required if name not in found}}, required, free


def resolved(schema: Json, root: Mapping[str, Json], depth: int = 0) -> Mapping[str, Json]:
    """The schema behind references, and behind alternatives of one."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return {}
    if isinstance(link := schema.get("$ref"), str):
        return resolved(target(link, root) or {}, root, depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        options = schema.get(word)
        if isinstance(options, list) and len(options) == 1:
            rest = {name: value for name, value in schema.items() if name != word}
            return {**rest, **resolved(options[0], root, depth + 1)}
    return schema


def choices_of(schema: Mapping[str, Json]) -> list[Json] | None:
    """The values that a schema lists, None where it lists none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if isinstance(values, list) and values else None


def without_tags(schema: Mapping[str, Json], root: Mapping[str, Json]) -> Schema:
    """A schema for JSON that stands between tags: its strings hold no "<", so that no tag can stand in them."""
    defs = {word: root[word] for word in ("$defs", "definitions") if isinstance(root.get(word), Mapping)}
    found = _tagless(relaxed({**defs, **schema}), 0)
    text = {"type": "string", "pattern": f"^{_BARE}$"}
    anything = {"anyOf": [text, {"type": ["number", "boolean", "null"]}, {"$ref": "#/$defs/-list"}, _ANY_MEMBERS]}
    found["$defs"] = {
        **found.get("$defs", {}),
        "-any": anything,
        "-list": {"type": "array", "items": {"$ref": "#/$defs/-any"}},
    }
    return found


_ANYTHING: Schema = {"$ref": "#/$defs/-any"}
_ANY_MEMBERS: Schema = {
    "type": "object",
    "patternProperties": {f"^{_BARE}$": _ANYTHING},
    "additionalProperties": False,
}


def _tagless(schema: Schema, depth: int) -> Schema:
    values = choices_of(schema)
    if values is not None:
        return {"enum": values}
    if depth > MAX_DEPTH:
        return _ANYTHING
    found = dict(schema)
    for word in ("$defs", "definitions"):
        if word in found:
            found[word] = {name: _tagless(part, depth + 1) for name, part in found[word].items()}
    if "$ref" in schema:
        return found
    for word in ("anyOf", "allOf"):
        if word in found:
            found[word] = [_tagless(part, depth + 1) for part in found[word]]
            return found
    types = found.get("type")
    if types is None:
        kinds = {"properties": "object", "items": "array", "minLength": "string", "maxLength": "string"}
        types = next((kind for word, kind in kinds.items() if word in found), None)
    if types is None:
        return {**{word: found[word] for word in ("$defs", "definitions") if word in found}, **_ANYTHING}
    if isinstance(types, list):
        parts = [_tagless({**schema, "type": kind}, depth + 1) for kind in types]
        return {"anyOf": parts}
    match types:
        case "string":
            found |= {"type": "string", "pattern": f"^{_BARE}$"}
        case "array":
            found |= {"type": "array", "items": _tagless(found.get("items", {}), depth + 1)}
        case "object":
            declared = {name: _tagless(part, depth + 1) for name, part in found.get("properties", {}).items()}
            more = found.get("additionalProperties")
            found |= {"type": "object", "properties": declared, "additionalProperties": False}
            if more is not False and not declared:
                inner = _tagless(more, depth + 1) if isinstance(more, dict) else _ANYTHING
                found["patternProperties"] = {f"^{_BARE}$": inner}
    return found
