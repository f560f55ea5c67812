"""Types from a schema, and values of a type from bare text (FORMATS 3.5)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.core import Tool
from scaleout.parsers.literals import escape, is_json, typed
from scaleout.parsers.schema import kinds_of, parameter_kinds


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({}, ""),
        ({"type": "string"}, "s"),
        ({"type": ["integer", "null"]}, "iz"),
        ({"enum": ["a", 1, None, True, 2.5]}, "binsz"),
        ({"const": 3}, "i"),
        ({"anyOf": [{"type": "string"}, {"oneOf": [{"type": "array"}]}], "allOf": [{"type": "object"}]}, "aos"),
        ({"type": "tuple"}, ""),
        ({"type": 5, "enum": "no", "anyOf": {}}, ""),
        ("no schema", ""),
        ({"$ref": "#/$defs/Place"}, "o"),
        ({"$ref": "#/$defs/Loop"}, ""),
        ({"$ref": "https://example.org/else"}, ""),
    ],
)
def test_types_that_a_schema_allows(schema: Any, kinds: str) -> None:
    root = {"$defs": {"Place": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}}}
    assert kinds_of(schema, root) == kinds


def test_parameters_that_are_plain_strings_need_no_place_in_the_state() -> None:
    tools = [
        Tool("f", parameters={"properties": {"a": {"type": "string"}, "b": {"type": "number"}, "c": {}}}),
        Tool("g"),
        Tool("h", parameters=[]),
    ]  # type: ignore[arg-type]
    assert parameter_kinds(tools, strings=False) == {"f": {"b": "n"}}
    assert parameter_kinds(tools, strings=True) == {"f": {"a": "s", "b": "n"}}


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
        *(
            (" 5 ", "i", 5),
            ("5", "n", 5),
            ("5.0", "i", 5.0),
            ("1e5", "n", 1e5),
            ("ten", "i", "ten"),
            ("-3", "i", -3),
            ("+3", "i", "+3"),
        ),
        *(
            ("NULL", "sz", None),
            ("null", "s", "null"),
            ("None", "z", "None"),
            ("True", "b", True),
            ("true", "s", "true"),
            ("maybe", "b", "maybe"),
        ),
        *(
            ("12", "s", "12"),
            ("12", "is", 12),
            ("x", "is", "x"),
            ("007", "i", "007"),
            ("[1]", "a", [1]),
            ("[1]", "o", [1]),
            ("[1", "a", "[1"),
        ),
        *(
            ('{"a": 1}', "o", {"a": 1}),
            ('{"a": 1}', "os", {"a": 1}),
            ('{"a": 1}', "s", '{"a": 1}'),
            ("{a}", "o", "{a}"),
            ("true", "i", True),
        ),
        *(
            ("", "i", ""),
            ("5", "", 5),
            ("five", "", "five"),
            ("NaN", "n", "NaN"),
            ("[1] 2", "a", "[1] 2"),
            ("9" * 5000, "i", None),
        ),
    ],
)
def test_values(text: str, kinds: str, value: Any) -> None:
    written = typed(text, kinds)
    if len(text) > 4000:
        assert written == text
    else:
        assert json.loads(written) == value
        assert type(json.loads(written)) is type(value)


@given(parts=st.lists(st.text(max_size=6), max_size=5))
def test_strings_may_be_escaped_in_parts(parts: list[str]) -> None:
    assert json.loads('"' + "".join(map(escape, parts)) + '"') == "".join(parts)


@given(text=st.text('[]{}",: 1atrue', max_size=12))
def test_is_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        assert not is_json(text.strip())
    else:
        assert is_json(text.strip())
