"""Arguments as one pair of tags per parameter: bare text where the schema says string, JSON where it says anything else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from attrs import frozen

from scaleout.core import Json, Tool
from scaleout.parsers.schema import kinds_of
from scaleout.parsers.shapes.call import Unwritable, written_name
from scaleout.parsers.shapes.forms import Form, any_number, either, free, maybe, pattern, schema, sequence, tag, text
from scaleout.parsers.shapes.schemas import choices_of, properties_of, resolved, without_tags

_KEY = re.compile(r"[^\s\"'<>=/]+")
_TYPES = {"i": "integer", "n": "number", "b": "boolean", "o": "object", "a": "array", "z": "null"}


@frozen
class TaggedArguments:
    """`open` stands before a key, `text` between a key and a bare text, `json` between a key and JSON, `close` behind a value.

    `ends`: what a bare text cannot hold, because the parser would end the value there.
    """

    open: str
    text: str
    close: str
    ends: Sequence[str]
    json: str = ""

    def write_name(self, name: str) -> str:
        return written_name(name)

    def form(self, tool: Tool) -> Form | None:
        properties, required, free_form = properties_of(tool)
        if free_form:
            value = free(self.text, self.close, self.ends)
            return any_number(sequence([text(self.open), pattern("[A-Za-z_][A-Za-z0-9_]*"), value]))
        parts = []
        for key, given in properties.items():
            if _KEY.fullmatch(key):
                parameter = self._parameter(key, given, tool.parameters or {})
                parts.append(parameter if key in required else maybe(parameter))
            elif key in required:
                raise Unwritable(f"the parameter {key!r} of {tool.name!r} cannot be written")
        return sequence(parts) if parts else None

    def _parameter(self, key: str, given: Mapping[str, Json], root: Mapping[str, Json]) -> Form:
        kinds = kinds_of(given, root) or "s"
        values = choices_of(resolved(given, root))
        if values is not None:
            spelled = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
            sayable = [one for one in spelled if not any(end in one for end in self.ends)]
            if not sayable:
                raise Unwritable(f"no value of {key!r} can be written")
            begin = self.open + key + (self.text if "s" in kinds else self.json or self.text)
            return tag(begin, either([text(one) for one in sayable]), self.close)
        as_text = free(self.open + key + self.text, self.close, self.ends)
        if kinds == "s" or ("s" in kinds and not self.json):
            return as_text
        begin = self.open + key + (self.json or self.text)
        if kinds == "b":
            return tag(begin, either([text(word) for word in ("true", "false", "True", "False")]), self.close)
        if "s" not in kinds:
            return tag(begin, schema(without_tags(given, root)), self.close)
        others = [_TYPES[kind] for kind in kinds if kind != "s"]
        return either([as_text, tag(begin, schema(without_tags({"type": others}, {})), self.close)])
