"""Text for custom tools, out of JSON that arrives in pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.dialects.custom_input import MAX_OPENING, CustomInput, dump_input, load_input, unwrap
from scaleout.errors import BadState

from .said import pieces

texts = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\\n\t/u🙂'), max_size=20)
layouts = st.sampled_from(
    ['{"input":"', '{ "input" : "', '\n{\n  "input": "', "{'input': \"", '{"in": "', '{"input": ', "", "["]
)
scraps = st.lists(
    st.sampled_from(['"', "\\", "\\u", "\\u00e9", "\\ud83d", "\\ude42", "\\n", "\\q", "a", "}", "é", "0", "d83d"]),
    max_size=12,
).map("".join)


def piecewise(parts: list[str]) -> str:
    """The payload of arguments in pieces, with the state sent through JSON at every cut."""
    state, said = CustomInput(), []
    for part in parts:
        said.append(state.feed(part))
        state = load_input(json.loads(json.dumps(dump_input(state))))
        assert len(state.held) <= MAX_OPENING
    return "".join(said) + state.finish()


@given(texts, st.booleans(), st.data())
def test_the_payload_is_what_was_written(text: str, ascii_only: bool, data: st.DataObject) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert unwrap(arguments) == text
    assert piecewise(data.draw(pieces(arguments))) == text


@given(layouts, scraps, st.data())
def test_any_arguments_read_alike_however_they_are_cut(opening: str, rest: str, data: st.DataObject) -> None:
    arguments = opening + rest
    assert piecewise(data.draw(pieces(arguments))) == unwrap(arguments)
    unwrap(arguments).encode()


@pytest.mark.parametrize(
    ("arguments", "payload"),
    [
        ('{"input": "ls"}', "ls"),
        ('{"input": "ls", "more": 1}', "ls"),
        ('{"input": "ls', "ls"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"other": "x"}', '{"other": "x"}'),
        ("ls -la", "ls -la"),
        ("", ""),
        ('{"inp', '{"inp'),
        ('{"input": "\\ud83d\\ude42"}', "🙂"),
        ('{"input": "\\ud83d!"}', "\ufffd!"),
        ('{"input": "\\ude42"}', "\ufffd"),
        ('{"input": "\\q"}', "\\q"),
        (" " * 50 + '{"input":"a"}', "a"),
        (" " * 60 + '{"input":"a"}', " " * 60 + '{"input":"a"}'),
    ],
)
def test_payloads(arguments: str, payload: str) -> None:
    assert unwrap(arguments) == payload
    assert piecewise(list(arguments)) == payload


@pytest.mark.parametrize("state", [None, [], [0], [4, ""], [-1, ""], ["0", ""], [0, 5], [0, "x" * 65]])
def test_a_damaged_state_is_refused(state: object) -> None:
    with pytest.raises(BadState):
        load_input(state)
