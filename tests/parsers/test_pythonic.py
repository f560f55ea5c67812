"""Python calls against the Python parser."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout import parsers
from scaleout.core import Piece
from scaleout.parsers import FORMATS
from tests.parsers.answers import Answer, parse

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


def read(text: str) -> Answer:
    """The answer, which must be the same character by character."""
    format = FORMATS["pythonic"]
    state = parsers.begin(format, ())
    whole = parse(format, state, [[Piece(text)]])
    assert parse(format, state, [[Piece(char)] for char in text], as_json=True) == whole
    return whole


def literal(value: Any) -> str:
    """The value as the JSON that a JSON reader sees equal."""
    return json.dumps(value, sort_keys=True)


@given(arguments=st.dictionaries(st.from_regex(r"[a-z_]\w{0,4}", fullmatch=True), values, max_size=4))
def test_what_python_prints(arguments: dict[str, Any]) -> None:
    text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    answer = read(f"[tools.f({text})]")
    assert [(call.name, call.status) for call in answer.calls] == [("tools.f", "ok")]
    assert literal(json.loads(answer.calls[0].arguments)) == literal(arguments)


ESCAPES = (
    *(
        r"\x41",
        r"\u00e9",
        r"\U0001F600",
        r"\N{BULLET}",
        r"\101",
        r"\0",
        r"\7x",
        r"\n\t\r\a\b\f\v",
        r"\\n",
        r"\'",
        r"\"",
        r"\q",
        "\\\n",
    ),
    *(r"\1234", r"\ud83d\ude00", r"a\x41b\u0042"),
)


@pytest.mark.parametrize("escape", ESCAPES)
def test_escapes(escape: str) -> None:
    with pytest.warns() if escape == r"\q" else _nothing():
        expected = ast.literal_eval(f'"{escape}"')
    answer = read(f'[f(x="{escape}")]')
    got = json.loads(answer.calls[0].arguments)["x"]
    assert got.encode("utf-16", "surrogatepass") == expected.encode("utf-16", "surrogatepass")


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *(
            ("+2", 2),
            ("007", 7),
            ("-07", -7),
            ("1_000", 1000),
            (".5", 0.5),
            ("5.", 5.0),
            ("-1.5e2", -150.0),
            ("0", 0),
            ("-0.0", -0.0),
        ),
        *(
            ("true", True),
            ("null", None),
            ("(1, 2)", [1, 2]),
            ("()", []),
            ("[1, 2,]", [1, 2]),
            ("{'a': 1,}", {"a": 1}),
            ("{1: 2}", {"1": 2}),
        ),
        *(("'a\nb'", "a\nb"), ("''", ""), ('"it\'s"', "it's"), ("[ [ ] , { } ]", [[], {}])),
    ],
)
def test_literals(written: str, value: Any) -> None:
    answer = read(f"[f( x = {written} , y = 1 , )]")
    assert json.loads(answer.calls[0].arguments) == {"x": value, "y": 1}


@pytest.mark.parametrize(
    "text",
    [
        *(
            "f(1)",
            "f(x=y)",
            "f(x=)",
            "f(x)",
            "f(x='a' 'b')",
            "f(x=1 + 2)",
            "f(x=[1 2])",
            "f(x={'a'})",
            "f(=1)",
            "f(x=1,,y=2)",
            "f(x=f'a')",
        ),
        *(
            "f(x={a: 1})",
            "f(x=1)(",
            "f",
            "f()g",
            "9f()",
            "f.()",
            "f(x==1)",
            "f(x=--1)",
            "f(x=1e)",
            "f(x='\\xg')",
            "f(x=0x1f)",
            "f(x=]1)",
            "*f()",
        ),
    ],
)
def test_no_calls(text: str) -> None:
    answer = read(f"[{text}]")
    good = text.startswith(("f(x=1)(", "f()g"))
    assert len(answer.calls) == good
    assert answer.content == (f"[{text}]" if not good else text.removeprefix("f(x=1)").removeprefix("f()") + "]")
