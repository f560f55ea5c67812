"""The shape of one family's calls: what stands around the name, the arguments and the whole list."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Protocol

from attrs import field, frozen

from scaleout.core import Tool
from scaleout.parsers.names import good_name
from scaleout.parsers.shapes.forms import Form, pattern, sequence, text
from scaleout.parsers.shapes.schemas import arguments_schema

NUMBER = "\0"
"""In the text around a name: where the family counts its calls."""


class Unwritable(ValueError):
    """A tool that the family's calls cannot express, with the reason."""


class Arguments(Protocol):
    """How one family writes arguments."""

    def write_name(self, name: str) -> str:
        """The name as it stands in the call. Raises Unwritable."""

    def form(self, tool: Tool) -> Form | None:
        """The arguments of a call of this tool; None where it takes none and nothing is written. Raises Unwritable."""


@frozen
class JsonArguments:
    """Arguments as one JSON object; the name stands in a JSON string where `quoted`.

    `as_peer`: in the words of the reference peer, which follows the schemas of strict tools alone.
    """

    quoted: bool = True
    as_peer: bool = False

    def write_name(self, name: str) -> str:
        plain = written_name(name)
        return json.dumps(plain, ensure_ascii=False)[1:-1] if self.quoted else plain

    def form(self, tool: Tool) -> Form:
        if not self.as_peer:
            return {"type": "json_schema", "json_schema": arguments_schema(tool)}
        return {
            "type": "json_schema",
            "json_schema": tool.parameters if tool.strict and tool.parameters is not None else True,
            "style": "json",
            "any_order": False,
            "max_whitespace_cnt": None,
            "excludes": [],
        }


def written_name(name: str, expression: str = ".+") -> str:
    """A name that the family's parser reads back. Raises Unwritable for any other."""
    if not good_name(name) or NUMBER in name or re.fullmatch(expression, name) is None:
        raise Unwritable(f"the name {name!r} cannot be written")
    return name


@frozen
class CallShape:
    """The text around one call's arguments, and around all calls.

    `pairs`: what may stand before the name, between name and arguments, and behind these. `sections`: what opens and closes the list of
    calls, in one of several ways. `trigger`: the text that begins a call, or a section, where calls are free; without one free calls
    are not shaped. `foreign`: texts that free text must not hold. `thought`: what opens and closes a thought in families where that is
    more than one token, and the engine cannot know. `tokens`: what the vocabulary must have for this shape.
    """

    pairs: Sequence[tuple[str, str, str]]
    arguments: Arguments = field(factory=JsonArguments)
    separator: str = ""
    sections: Sequence[tuple[str, str]] = ()
    trigger: str = ""
    foreign: Sequence[str] = ()
    thought: tuple[str, str] | None = None
    tokens: Sequence[str] = ()

    def tags(self, tool: Tool) -> list[Form]:
        """All ways to write a call of this tool. Raises Unwritable."""
        name, arguments = self.arguments.write_name(tool.name), self.arguments.form(tool)
        return [_tag(before + name + behind, arguments, end) for before, behind, end in self.pairs]


def _tag(begin: str, arguments: Form | None, end: str) -> Form:
    """One call. A tag must have contents: where there are none, or a number, the beginning gives a part of itself."""
    parts = [] if arguments is None else [arguments]
    begin, *rest = begin.split(NUMBER)
    for piece in reversed(rest):
        parts = [pattern("[0-9]+"), text(piece), *parts]
    if not parts:
        begin, parts = begin[:-1], [text(begin[-1])]
    return {"type": "tag", "begin": begin, "content": sequence(parts), "end": end}
