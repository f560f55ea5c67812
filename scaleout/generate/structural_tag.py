"""Structural tags (free text with shaped stretches in it) as a Lark grammar for llguidance. Knows only tokens that are words of their own.

Both spellings are read: `{"type": "structural_tag", "format": {…}}`, and the older `{"structures": […], "triggers": […]}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field

from scaleout.core import Json
from scaleout.errors import BadRequest

MAX_DEPTH = 64
"""Twelve levels or so are one nested value of a call."""
MAX_RULES = 20_000
"""A tag of a few hundred tools has a few thousand."""

ANY_TEXT = "(.|\\n)*"

BLANKS = "[ \\n\\r\\t]{1,40}"
"""Layout between two words of JSON: a line's end and the indentation of the next. Without a bound a weak model says nothing else."""


def lark_of(tag: Json, added_ids: Mapping[str, int]) -> str:
    """`added_ids`: spellings of added tokens. A literal that holds one demands that token: spelled out it would be other text.

    Raises BadRequest.
    """
    if not isinstance(tag, Mapping):
        raise _bad("must be an object")
    spellings = sorted(filter(str.strip, added_ids), key=len, reverse=True)
    writer = _Writer(added_ids, re.compile(f"({'|'.join(map(re.escape, spellings)) or '(?!)'})"))
    shape = tag["format"] if "format" in tag else _from_structures(tag)
    start = writer.body(shape, 0)
    return "\n".join(["%llguidance {}", f"start: {start}", *writer.rules]) + "\n"


def _from_structures(tag: Mapping[str, Json]) -> Json:
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, Sequence) or not isinstance(triggers, Sequence):
        raise _bad("needs `format`, or `structures` and `triggers`")
    tags = [
        {
            "type": "tag",
            "begin": _text(one, "begin"),
            "content": {"type": "json_schema", "json_schema": one.get("schema", True)},
            "end": _text(one, "end"),
        }
        for one in structures
        if isinstance(one, Mapping)
    ]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


@define
class _Writer:
    """Each `body` gives the right side of a rule, and adds the rules that it refers to."""

    added_ids: Mapping[str, int]
    added: re.Pattern[str]
    rules: list[str] = field(factory=list)
    _names: int = 0

    def body(self, shape: Json, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise _bad(f"is nested deeper than {MAX_DEPTH}")
        if not isinstance(shape, Mapping):
            raise _bad("holds a format that is not an object")
        kinds: Mapping[str, Callable[[Mapping[str, Json], int], str]] = {
            "const_string": lambda shape, depth: self.literal(_text(shape, "value")),
            "json_schema": lambda shape, depth: f"%json {json.dumps(_with_blanks(shape.get('json_schema', True)))}",
            "regex": lambda shape, depth: self.terminal(_regex(_text(shape, "pattern"))),
            "any_text": lambda shape, depth: self.free_text(shape),
            "sequence": lambda shape, depth: " ".join(self.parts(shape, depth)) or '""',
            "or": lambda shape, depth: self.rule(" | ".join(self.parts(shape, depth)) or '""'),
            "optional": lambda shape, depth: f"({self.content(shape, depth)})?",
            "star": lambda shape, depth: f"({self.content(shape, depth)})*",
            "plus": lambda shape, depth: f"({self.content(shape, depth)})+",
            "tag": lambda shape, depth: self.literal(_text(shape, "begin")) + " " + self.tag_rest(shape, depth),
            "triggered_tags": self.triggered,
            "tags_with_separator": self.separated,
        }
        kind = kinds.get(str(shape.get("type")))
        if kind is None:
            raise _bad(f"holds a format of type {shape.get('type')!r}; known are {', '.join(kinds)}")
        return kind(shape, depth)

    def parts(self, shape: Mapping[str, Json], depth: int) -> list[str]:
        return [self.rule(self.body(part, depth + 1)) for part in _list(shape, "elements")]

    def content(self, shape: Mapping[str, Json], depth: int) -> str:
        return self.rule(self.body(shape.get("content"), depth + 1))

    def tag_rest(self, tag: Mapping[str, Json], depth: int) -> str:
        """What follows a tag's beginning. Free text inside ends at the first of its ends.

        The schema `true` means an object: it stands for the arguments of a call, which nothing else can be.
        """
        content, ends = tag.get("content"), _ends(tag)
        if isinstance(content, Mapping) and content.get("type") == "json_schema" and content.get("json_schema") is True:
            tag = {**tag, "content": {"type": "json_schema", "json_schema": {"type": "object"}}}
        if isinstance(content, Mapping) and content.get("type") == "any_text" and any(ends):
            return self.rule(" | ".join(self.text_until(end, _excludes(content)) for end in ends))
        inside = self.content(tag, depth)
        return f"{inside} ({' | '.join(self.literal(end) for end in ends)})"

    def triggered(self, shape: Mapping[str, Json], depth: int) -> str:
        """Free text in which a trigger begins one of the tags that start with it."""
        excludes = _excludes(shape)
        options = []
        for trigger in _list(shape, "triggers"):
            if not isinstance(trigger, str) or not trigger:
                raise _bad("has a trigger that is not a text")
            rests = [
                f"{self.literal(_text(tag, 'begin').removeprefix(trigger))} {self.tag_rest(tag, depth + 1)}"
                for tag in self.tags(shape)
                if _text(tag, "begin").startswith(trigger)
            ]
            if rests:
                options.append((trigger, self.rule(" | ".join(rests))))
        if not options:
            raise _bad("has triggers that begin none of its tags")
        after_text = " | ".join(f"{self.text_until(trigger, excludes)} {rest}" for trigger, rest in options)
        at_once = " | ".join(f"{self.literal(trigger)} {rest}" for trigger, rest in options)
        tag = self.rule(after_text)
        tail = self.terminal(_without([*excludes, *(trigger for trigger, _ in options if self.added.match(trigger))]))
        if shape.get("stop_after_first"):
            return f"({at_once})" if shape.get("at_least_one") else f"({tag} | {tail})"
        return f"({at_once}) {tag}* {tail}" if shape.get("at_least_one") else f"{tag}* {tail}"

    def separated(self, shape: Mapping[str, Json], depth: int) -> str:
        tag = self.rule(" | ".join(self.rule(self.body(tag, depth + 1)) for tag in self.tags(shape)))
        more = "" if shape.get("stop_after_first") else f" ({self.literal(shape.get('separator') or '')} {tag})*"
        return f"({tag}{more})" if shape.get("at_least_one") else f"({tag}{more})?"

    def tags(self, shape: Mapping[str, Json]) -> list[Mapping[str, Json]]:
        tags = _list(shape, "tags")
        if not tags or not all(isinstance(tag, Mapping) for tag in tags):
            raise _bad("has no tags, or some that are not objects")
        return tags

    def literal(self, text: str) -> str:
        """Added tokens by their ids, the rest as text."""
        return " ".join(self.pieces(text)) or '""'

    def pieces(self, text: str) -> list[str]:
        return [
            f"<[{self.added_ids[piece]}]>" if at % 2 else json.dumps(piece, ensure_ascii=False)
            for at, piece in enumerate(self.added.split(text))
            if piece
        ]

    def text_until(self, end: str, excludes: Sequence[str]) -> str:
        """Free text up to and with the first `end`.

        A token ends the text at once. Where one stands inside `end`, the end counts by its spelling: the text could not know before
        that token that it is over.
        """
        first = self.added.match(end)
        if first:
            text = self.terminal(_without([*excludes, first[0]]))
            return f"{text} {self.literal(end)}"
        name = self._name("until")
        self._add(f"{name}[lazy]: {self.terminal(_without(excludes))} {json.dumps(end, ensure_ascii=False)}")
        return name

    def free_text(self, shape: Mapping[str, Json]) -> str:
        return self.terminal(_without(_excludes(shape)))

    def terminal(self, expression: str) -> str:
        name = self._name("TEXT").upper()
        self._add(f"{name}: {expression}")
        return name

    def rule(self, right: str) -> str:
        name = self._name("rule")
        self._add(f"{name}: {right}")
        return name

    def _add(self, rule: str) -> None:
        if len(self.rules) >= MAX_RULES:
            raise _bad("is too large")
        self.rules.append(rule)

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}_{self._names}"


def _with_blanks(schema: Json) -> Json:
    if schema is True:
        schema = {}
    return {"x-guidance": {"whitespace_pattern": BLANKS}, **schema} if isinstance(schema, Mapping) else schema


def _without(excludes: Sequence[str]) -> str:
    """The regular expression of any text that holds none of `excludes`."""
    if not excludes:
        return f"/{ANY_TEXT}/"
    forbidden = "|".join(re.escape(text).replace("/", "\\/") for text in excludes)
    return f"/{ANY_TEXT}/ & ~/{ANY_TEXT}({forbidden}){ANY_TEXT}/"


def _regex(pattern: str) -> str:
    return "/" + re.sub(r"(?<!\\)/", r"\/", pattern) + "/"


def _text(shape: Mapping[str, Json], name: str) -> str:
    value = shape.get(name)
    if not isinstance(value, str):
        raise _bad(f"has a {shape.get('type', 'structure')} whose {name} is not a text")
    return value


def _list(shape: Mapping[str, Json], name: str) -> list[Json]:
    value = shape.get(name)
    if not isinstance(value, list):
        raise _bad(f"has a {shape.get('type')} whose {name} is not a list")
    return value


def _ends(tag: Mapping[str, Json]) -> list[str]:
    ends = tag.get("end")
    return [end for end in ends if isinstance(end, str)] if isinstance(ends, list) and ends else [_text(tag, "end")]


def _excludes(shape: Mapping[str, Json]) -> list[str]:
    return [text for text in shape.get("excludes") or () if isinstance(text, str) and text]


def _bad(text: str) -> BadRequest:
    return BadRequest(f"structured_outputs.structural_tag {text}", "structured_outputs.structural_tag")
