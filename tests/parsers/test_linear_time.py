"""Reading costs the same per character however long the answer is, and the state does not grow with it."""

from __future__ import annotations

import json
import time

import pytest

from scaleout import parsers
from scaleout.core import Piece, ToolArguments, ToolEnd
from scaleout.parsers import FORMATS
from tests.parsers.answers import parse, split_at_tokens

SECONDS = 30
"""Far above what linear reading takes on a slow machine (about 2 s), far below what quadratic reading takes."""

CALLS = {
    "hermes": ('<tool_call>{"name": "f", "arguments": {"x": "', '"}}</tool_call>'),
    "llama3_json": ('{"name": "f", "parameters": {"x": "', '"}}'),
    "granite": ('<|tool_call|>[{"name": "f", "arguments": {"x": "', '"}}]'),
    "apertus": ('<|tools_prefix|>[{"f": {"x": "', '"}}]<|tools_suffix|>'),
    "kimi_k2": ('<|tool_call_begin|>f:0<|tool_call_argument_begin|>{"x": "', '"}<|tool_call_end|>'),
    "mistral": ('[TOOL_CALLS]f[ARGS]{"x": "', '"}'),
    "gpt_oss": ('<|channel|>commentary to=functions.f<|message|>{"x": "', '"}<|call|>'),
    "qwen3_coder": ("<tool_call>\n<function=f>\n<parameter=x>\n", "\n</parameter>\n</function>\n</tool_call>"),
    "glm47": ("<tool_call>f<arg_key>x</arg_key><arg_value>", "</arg_value></tool_call>"),
    "gemma4": ('<|tool_call>call:f{x:<|"|>', '<|"|>}<tool_call|>'),
}
HELD = {
    "hermes": ('<tool_call>{"arguments": {"x": "', '"}, "name": "f"}</tool_call>'),
    "pythonic": ("[f(x='", "')]"),
    "olmo3": ("<function_calls>\nf(x='", "')\n</function_calls>"),
    "gemma4": ('<|tool_call>call:f{x:{y:<|"|>', '<|"|>}}<tool_call|>'),
}


def _one_by_one(name: str, before: str, value: str, after: str) -> tuple[list[object], int]:
    """Feed a call character by character. Returns the events and the largest state."""
    format = FORMATS[name]
    state, events, largest = parsers.begin(format, ()), [], 0
    for piece in split_at_tokens(before + value + after, format.tokens):
        for n, char in enumerate([piece] if piece.marker else map(Piece, piece.text)):
            state, new = parsers.feed(format, state, [char])
            events += new
            if n % 1000 == 0:
                largest = max(largest, len(json.dumps(parsers.dump_state(state))))
    return events + parsers.finish(format, state), largest


@pytest.mark.parametrize("name", CALLS)
def test_long_argument_one_character_at_a_time(name: str) -> None:
    before, after = CALLS[name]
    start = time.process_time()
    events, largest = _one_by_one(name, before, "lorem ipsum " * 8400, after)
    assert time.process_time() - start < SECONDS
    assert ToolEnd(0, "ok") in events
    assert sum(len(event.text) for event in events if isinstance(event, ToolArguments)) > 100_000
    assert largest <= _one_by_one(name, before, "lorem ipsum " * 100, after)[1] + 8
    assert largest < 400


@pytest.mark.parametrize("name", HELD)
def test_long_text_that_must_be_held(name: str) -> None:
    before, after = HELD[name]
    start = time.process_time()
    events, _ = _one_by_one(name, before, "lorem ipsum " * 8400, after)
    assert time.process_time() - start < SECONDS
    assert ToolEnd(0, "ok") in events


def test_five_thousand_pythonic_arguments() -> None:
    format = FORMATS["pythonic"]
    text = "[paint(" + ", ".join(f"tile{n}='c{n % 7}'" for n in range(5000)) + ")]"
    start = time.process_time()
    whole = parse(format, parsers.begin(format, ()), [[Piece(text)]])
    assert parse(format, parsers.begin(format, ()), [[Piece(text[n : n + 3])] for n in range(0, len(text), 3)]) == whole
    assert time.process_time() - start < SECONDS
    assert len(json.loads(whole.calls[0].arguments)) == 5000


@pytest.mark.parametrize(
    "text", ["<" * 200_000, " <tool_call" * 20_000, "[{(" * 70_000, "\n" * 200_000, '"\\' * 100_000]
)
@pytest.mark.parametrize("name", FORMATS)
def test_long_nonsense(name: str, text: str) -> None:
    """One huge chunk of almost-markers, behind every opener."""
    format = FORMATS[name]
    openers = {*format.calls.open, *format.calls.inner, *format.calls.first} if format.calls else {""}
    start = time.process_time()
    for opener in openers:
        pieces = [Piece(opener, marker=opener in format.tokens), Piece(text)]
        parse(format, parsers.begin(format, ()), [pieces])
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if format.calls and format.calls.open])
def test_many_failed_openers(name: str) -> None:
    format = FORMATS[name]
    opener = next(iter(format.calls.open))  # type: ignore[union-attr]
    pieces = [Piece(opener, marker=opener in format.tokens), Piece(" ?\n")] * 20_000
    start = time.process_time()
    parse(format, parsers.begin(format, ()), [pieces])
    assert time.process_time() - start < SECONDS
