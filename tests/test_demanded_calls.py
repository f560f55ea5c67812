"""Whatever an engine can say under a demand for calls is read as such calls: every format, on the family's own tokenizer.

A demand is compiled into masks, and a dumb engine walks them: it says at random what is allowed, and after a while it prefers what comes
nearer to an end. Derender must read its ids as calls of the right tools with arguments that their schemas allow.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import evolve, frozen
from jsonschema import Draft202012Validator

from scaleout.core import ChatRequest, ChoiceAnswer, Message, RequestOptions, TokenDelta, Tool, ToolChoice
from scaleout.derender import Derenderer, fold
from scaleout.parsers import FORMATS
from scaleout.parsers.constraint import constrain_calls, shape_of
from tests.derender.recorded import chat_request, open_derenderer, read_records
from tests.parsers.recorded import families

pytest.importorskip("llguidance")

from scaleout.generate.constraint import Constraints, Matcher

PLACE = {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}, "required": ["city"]}
BOOK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "people": {"type": "integer", "minimum": 1, "maximum": 40},
        "when": {"type": "string"},
        "unit": {"type": "string", "enum": ["C", "F", "it's"]},
        "price": {"type": "number"},
        "smoke": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"$ref": "#/$defs/Place"},
        "rest": {"type": "object"},
    },
    "required": ["people", "when", "place"],
    "$defs": {"Place": PLACE},
}
LOOK = {"type": "object", "properties": {"q": {"type": "string"}, "limit": {"type": "integer"}}}
TOOLS = [
    Tool("book_table", "Books", BOOK),
    Tool("ping", None, {"type": "object", "properties": {}}),
    Tool("look_up", None, LOOK, strict=True),
    Tool("now"),
]
SCHEMAS = {tool.name: {"type": "object", **(tool.parameters or {})} for tool in TOOLS}
REQUEST = ChatRequest([Message("user", "…")], tools=TOOLS, tool_choice=ToolChoice("required"), options=RequestOptions())
CHOICES = {
    "required": REQUEST,
    "serial": evolve(REQUEST, parallel_tool_calls=False),
    "named": evolve(REQUEST, tool_choice=ToolChoice("named", "book_table")),
}

WITH_CALLS = [name for name in families() if FORMATS[name].calls]
FREE_STEPS, MOST_STEPS = 40, 400
LAST = ("}", "}}", '"}', "]", ")", '"', "'")
ENDS = ("0", '":', ":", ": ", "a", ">", "true", "null")
"""What comes nearer to an end, first what closes most."""


@frozen
class Family:
    derenderer: Derenderer
    constraints: Constraints
    eos: int
    last: list[list[int]]
    ends: list[list[int]]
    """Ids that lead to an end: one after the other is tried when it is time, the last ones first."""

    def is_blank(self, id: int) -> bool:
        return not (self.derenderer.tokenizer.token_bytes(id) or b"").strip()

    def compile(self, request: ChatRequest, thinking: bool = False) -> Matcher:
        format = self.derenderer.format
        assert format is not None
        demand = constrain_calls(format, request, lambda: thinking)
        assert demand is not None
        return self.constraints.compile(demand)


@pytest.fixture(scope="module")
def family(name: str, family_tokenizer: Callable[[str], Path]) -> Family:
    """Each in turn, for all tests: with its masks a family takes 200 MB."""
    return open_family(family_tokenizer(name), name)


def open_family(folder: Path, name: str) -> Family:
    entry = families()[name]
    derenderer = open_derenderer(folder, entry["tool_parser"], entry["reasoning_parser"])
    tokenizer, format = derenderer.tokenizer, derenderer.format
    assert tokenizer.eos_id is not None
    assert format is not None
    shape = shape_of(format)
    assert shape is not None
    words = [word for one in (*shape.pairs, *shape.sections) for word in one] + [
        getattr(shape.arguments, "close", ""),
        getattr(shape.arguments, "delimiter", ""),
        *(shape.thought or ()),
    ]
    constraints = Constraints.over(tokenizer, tokenizer.vocab_size, [tokenizer.eos_id])
    last, ends = (
        [tokenizer.encode(word, False) for word in group if word.strip()] for group in ((*words, *LAST), ENDS)
    )
    return Family(derenderer, constraints, tokenizer.eos_id, last, ends)


def allowed_ids(matcher: Matcher, random: Random) -> list[int]:
    """A few of the ids that the mask allows."""
    mask = matcher.mask()
    at = [place for place, byte in enumerate(mask) if byte]
    places = random.sample(at, min(len(at), 30))
    return [place * 8 + bit for place in places for bit in range(8) if mask[place] >> bit & 1]


def takes(matcher: Matcher, ids: list[int]) -> bool:
    """Whether all these ids are allowed, one after the other: a hundred times faster than masks."""
    return bool(matcher._matcher.validate_tokens(ids) == len(ids))


def walk(family: Family, matcher: Matcher, random: Random) -> list[int] | None:
    """What a dumb engine says; None where it finds no end."""
    said: list[int] = []
    while len(said) < MOST_STEPS:
        ways = [random.sample(group, len(group)) for group in (family.last, family.ends)]
        hurried = len(said) > FREE_STEPS or random.random() < 0.3
        way = (
            next((way for way in [[family.eos], *ways[0], *ways[1]] if takes(matcher, way)), None) if hurried else None
        )
        if way is None:
            ids = allowed_ids(matcher, random)
            way = [random.choice([id for id in ids if not family.is_blank(id)] or ids)]
        if way == [family.eos]:
            return said
        said += way
        matcher.take(way)
    return None


def read(family: Family, request: ChatRequest, ids: list[int], prompt: list[int]) -> ChoiceAnswer:
    state = family.derenderer.begin(request, prompt, "walk")
    return fold([family.derenderer.feed(state, TokenDelta(0, ids, finish_reason="stop"))])


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", WITH_CALLS, scope="module")
def test_all_that_can_be_said_is_read_as_calls(name: str, choice: str, family: Family) -> None:
    """Whatever an engine can say under a demand for calls, by chance, is read as such calls, with arguments that fit the schema."""
    request = CHOICES[choice]
    tokenizer = family.derenderer.tokenizer
    demanded = family.compile(request)
    ended = 0
    for seed in range(3):
        ids = walk(family, demanded.copy(), Random(seed))
        if ids is None:
            continue
        ended += 1
        answer = read(family, request, ids, [])
        text = tokenizer.decode(ids, False)
        assert answer.tool_calls, text
        assert answer.content is None, text
        assert {call.status for call in answer.tool_calls} == {"ok"}, text
        assert choice == "required" or len(answer.tool_calls) == 1, text
        loose = getattr(shape_of(family.derenderer.format).arguments, "as_peer", False)  # type: ignore[arg-type,union-attr]
        for call in answer.tool_calls:
            assert call.name in (["book_table"] if choice == "named" else list(SCHEMAS)), text
            if not loose or call.name == "look_up":
                Draft202012Validator(SCHEMAS[call.name]).validate(json.loads(call.arguments))
    assert ended


UNLIKE_MODELS = (
    "-call-marker-in-string",
    "-call-without-close",
    "-calls-no-newline-between",
    *("hermes-006-call-two-same", "qwen3-006-call-two-same"),
    *("gpt_oss-011-call-three-thoughts", "gpt_oss-022-call-json-word"),
    *("gpt_oss-024-call-first-recipient-in-role", "gpt_oss-025-call-in-analysis"),
)
"""Answers that no demand lets through: with special tokens in strings, thoughts that a call ends, thoughts between calls, odd headers,
odd layout;and the peer's words for hermes have no newline between calls."""


@pytest.mark.parametrize("name", WITH_CALLS, scope="module")
def test_what_models_write_is_let_through(name: str, family: Family, shared_folder: Path) -> None:
    """A demand lets through what the family's template writes: recorded answers of calls, with a thought or without."""
    format, tokenizer = family.derenderer.format, family.derenderer.tokenizer
    assert format is not None
    tried = 0
    for record in read_records(shared_folder, name):
        wanted, id = record["expected"], record["id"]
        if wanted["content"] is not None or not wanted["tool_calls"] or record["kind"] != "well-formed":
            continue
        if "-call" not in id or any(part in id for part in UNLIKE_MODELS):
            continue
        text, close = record["text"], format.thought.close if format.thought else ()
        if not shape_of(format).thought:  # type: ignore[union-attr]
            # The engine's masks sleep until a thought is over.
            text = text[max((text.rfind(marker) + len(marker) for marker in close if marker in text), default=0) :]
        for marker in format.end_tokens:
            text = text.replace(marker, "")
        opened = bool(wanted["reasoning"]) and record["prompt_tail"].rstrip().endswith("<think>")
        matcher = family.compile(evolve(chat_request(record), tool_choice=ToolChoice("required")), opened)
        tried += 1
        assert takes(matcher, tokenizer.encode(text.strip(), False)), text
    assert tried >= 4
