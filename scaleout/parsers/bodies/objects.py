"""Calls written as JSON objects `{"name": …, "arguments": {…}}`, alone or in an array (FORMATS 3.2, 3.3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from attrs import evolve, field, frozen

from scaleout.parsers.json_scan import follow, read_string
from scaleout.parsers.machine import Reader
from scaleout.parsers.names import good_name
from scaleout.parsers.state import CallState, JsonState
from scaleout.parsers.stream import Alphabet, Markers, skip

_LANGUAGE = "json"


@frozen
class Objects:
    """Call objects. `array`: whether they stand in one. `separators`: what may stand between objects; none: one object is all.
    `prefix`: a token between the opener and the body. `stray`: the region of other text
    after an object, `after` that of text after the array. `bare`: nothing marks the
    region, so an object without arguments is no call. `keyed`: every key of an object names a function, its value is the arguments.
    """

    name: str = "object"
    array: Literal["never", "always", "either"] = "never"
    name_key: str = "name"
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    id_key: str = ""
    prefix: str = field(default="", metadata={"marker": True})
    separators: str = ""
    stray: str = "content"
    after: str = "content"
    bare: bool = False
    keyed: bool = False
    first: str = "open"
    types: str = ""
    stops: Markers = field(factory=Markers)

    def bind(self, alphabet: Alphabet, stops: Markers) -> Objects:
        return evolve(self, prefix=alphabet.encode(self.prefix), stops=stops)

    def step(self, reader: Reader) -> bool:
        call = reader.state.call
        assert call is not None
        return self.steps[call.step](self, reader, call)

    def finish(self, reader: Reader) -> None:
        call = reader.state.call
        assert call is not None
        if call.announced:
            reader.argue(reader.text[reader.at :] if call.step == "arguments" else "")
            reader.at = len(reader.text)
            reader.end("unclosed", "next")
            reader.leave()
        elif call.step in ("next", "more"):
            reader.leave()
        else:
            reader.fail()

    # ------------------------------------------------------------------------------ around the objects

    def _open(self, reader: Reader, call: CallState) -> bool:
        """The token that must follow the opener, where there is one."""
        if self.prefix and reader.at == len(reader.text):
            return False
        if not reader.text.startswith(self.prefix, reader.at):
            reader.fail()
            return True
        reader.at += len(self.prefix)
        call.step = "body"
        return True

    def _fence(self, reader: Reader, call: CallState) -> bool:
        """Behind the backticks of a fence: the name of the language, if it is there."""
        rest = reader.text[reader.at : reader.at + len(_LANGUAGE)]
        if rest != _LANGUAGE and _LANGUAGE.startswith(rest) and not reader.final:
            return False
        reader.at += len(rest) if rest == _LANGUAGE else 0
        call.step = "body"
        return True

    def _body(self, reader: Reader, call: CallState) -> bool:
        """Layout, then the bracket of the array or of the object."""
        match self._next_char(reader):
            case "":
                return False
            case "[" if self.array != "never":
                reader.at += 1
                call.step = "element"
            case "{" if self.array != "always":
                reader.at += 1
                call.step = "first key"
            case _:
                reader.fail()
        return True

    def _element(self, reader: Reader, call: CallState) -> bool:
        """The first element of an array."""
        match self._next_char(reader):
            case "":
                return False
            case "{":
                reader.at += 1
                call.step = "first key"
            case _:
                reader.fail()
        return True

    def _next(self, reader: Reader, call: CallState) -> bool:
        """After an object: another one, the end of the array, or other text."""
        char = self._next_char(reader, self.separators) if self.separators else "other"
        reader.mark()
        if char == "":
            return False
        if char == "{":
            reader.at += 1
            call.step = "first key"
        elif char == "]" and self.array != "never":
            reader.at += 1
            reader.leave(self.after)
        else:
            reader.leave(self.stray)
        return True

    # ------------------------------------------------------------------------------ inside an object, before the announcement

    def _first_key(self, reader: Reader, call: CallState) -> bool:
        if self._next_char(reader) == "}":
            return self._close(reader, call)
        return self._next_key(reader, call)

    def _next_key(self, reader: Reader, call: CallState) -> bool:
        match self._next_char(reader):
            case "":
                return False
            case '"':
                self._begin_string(reader, call, "key")
            case _:
                reader.fail()
        return True

    def _key(self, reader: Reader, call: CallState) -> bool:
        if (key := self._string(reader, call)) is None:
            return False
        if self.keyed:
            call.name = key.strip()
            if not good_name(call.name):
                reader.fail()
                return True
            key = self.argument_keys[0]
        call.key = key if key in (self.name_key, self.id_key, *self.argument_keys) else ""
        call.step = "colon"
        return True

    def _colon(self, reader: Reader, call: CallState) -> bool:
        match self._next_char(reader):
            case "":
                return False
            case ":":
                reader.at += 1
                call.step = "value"
            case _:
                reader.fail()
        return True

    def _value(self, reader: Reader, call: CallState) -> bool:
        """Which value is this? The first of a kind counts, others are skipped."""
        char = self._next_char(reader)
        if char == "":
            return False
        if call.key == self.name_key and not call.name:
            if char == '"':
                self._begin_string(reader, call, "name")
            else:
                reader.fail()
        elif call.key and call.key == self.id_key and call.id is None and char == '"':
            self._begin_string(reader, call, "id")
        elif call.key in self.argument_keys and call.start < 0:
            if char == "{":
                call.start = reader.offset()
                reader.at += 1
                call.step = "begin"
            else:
                reader.fail()
        else:
            call.json = JsonState(stack="{")
            call.step = "skip"
        return True

    def _name(self, reader: Reader, call: CallState) -> bool:
        if (name := self._string(reader, call)) is None:
            return False
        name = name.strip()
        if not good_name(name):
            reader.fail()
            return True
        call.name = name
        call.step = "comma"
        if call.stop >= 0:
            self._announce(reader, call, reader.cut(call.start, call.stop), "rest")
        return True

    def _id(self, reader: Reader, call: CallState) -> bool:
        if (id := self._string(reader, call)) is None:
            return False
        call.id = id
        call.step = "comma"
        return True

    def _skip(self, reader: Reader, call: CallState) -> bool:
        """A value that carries nothing."""
        assert call.json is not None
        reader.at, outcome = follow(call.json, reader.text, reader.at, self.stops, floor=1)
        if outcome == "marker" or (outcome == "done" and not call.json.stack):
            reader.fail()
            return True
        if outcome == "more":
            return False
        call.sound = call.sound and call.json.valid
        call.json = None
        call.step = "comma"
        return True

    def _comma(self, reader: Reader, call: CallState) -> bool:
        match self._next_char(reader):
            case "":
                return False
            case ",":
                reader.at += 1
                call.step = "next key"
            case "}":
                return self._close(reader, call)
            case _:
                reader.fail()
        return True

    def _close(self, reader: Reader, call: CallState) -> bool:
        """The object closes before its arguments came: a call without any, or none at all."""
        if not call.name or self.bare or self.keyed:
            reader.fail()
            return True
        reader.at += 1
        if reader.announce(call.name, call.id):
            reader.argue("{}")
            reader.end("ok" if call.sound else "malformed", "next")
        return True

    def _begin(self, reader: Reader, call: CallState) -> bool:
        """The arguments have begun with a brace; a quote or the closing brace makes them an object."""
        match self._next_char(reader):
            case "":
                return False
            case '"' | "}":
                call.json = JsonState(stack="{", expect="k")
                if call.name:
                    self._announce(reader, call, reader.cut(call.start, reader.offset()), "arguments")
                else:
                    call.step = "held"
            case _:
                reader.fail()
        return True

    def _held(self, reader: Reader, call: CallState) -> bool:
        """Arguments before the name: they wait for it."""
        assert call.json is not None
        reader.at, outcome = follow(call.json, reader.text, reader.at, self.stops)
        if outcome == "marker":
            reader.fail()
            return True
        if outcome == "more":
            return False
        call.stop = reader.offset()
        call.sound = call.sound and call.json.valid
        call.json = None
        call.step = "comma"
        return True

    # ------------------------------------------------------------------------------ after the announcement

    def _announce(self, reader: Reader, call: CallState, arguments: str, step: str) -> None:
        if reader.announce(call.name, call.id):
            reader.argue(arguments)
            call.step = step
            if step == "rest":
                call.json = JsonState(stack="{", expect=",")

    def _arguments(self, reader: Reader, call: CallState) -> bool:
        assert call.json is not None
        start = reader.at
        reader.at, outcome = follow(call.json, reader.text, start, self.stops)
        reader.argue(reader.text[start : reader.at])
        if outcome == "done":
            call.sound = call.sound and call.json.valid
            call.json, call.step = JsonState(stack="{", expect=","), "rest"
            if self.keyed:
                reader.end("ok" if call.sound else "malformed", "more")
        return self._cut_short(reader, outcome)

    def _more(self, reader: Reader, call: CallState) -> bool:
        """After the arguments of a keyed call: the next key, or the end of the object."""
        char = self._next_char(reader, ",")
        reader.mark()
        if char == "":
            return False
        if char == '"':
            self._begin_string(reader, call, "key")
        elif char == "}":
            reader.at += 1
            call.step = "next"
        else:
            reader.leave(self.stray)
        return True

    def _rest(self, reader: Reader, call: CallState) -> bool:
        """What follows the arguments inside the object."""
        assert call.json is not None
        reader.at, outcome = follow(call.json, reader.text, reader.at, self.stops)
        if outcome == "done":
            reader.end("ok" if call.sound and call.json.valid else "malformed", "next")
        return self._cut_short(reader, outcome)

    def _cut_short(self, reader: Reader, outcome: str) -> bool:
        """A marker outside a string ends the call, whatever is missing."""
        if outcome == "marker":
            reader.end("malformed", "next")
            reader.leave()
        return outcome != "more"

    # ------------------------------------------------------------------------------ small parts

    def _next_char(self, reader: Reader, also: str = "") -> str:
        """The next character that is no layout (and none of `also`); "" when there is none yet."""
        reader.at = skip(reader.text, reader.at, also)
        return reader.text[reader.at : reader.at + 1]

    def _begin_string(self, reader: Reader, call: CallState, step: str) -> None:
        call.mark = reader.offset()
        call.json = JsonState(string=1)
        reader.at += 1
        call.step = step

    def _string(self, reader: Reader, call: CallState) -> str | None:
        """The string that began at `call.mark`, None until it is complete. A string that is no valid JSON is ""."""
        assert call.json is not None
        reader.at = read_string(call.json, reader.text, reader.at)
        if call.json.string:
            return None
        raw = reader.cut(call.mark, reader.offset())
        valid, call.json, call.mark = call.json.valid, None, -1
        try:
            return str(json.loads(raw)) if valid else ""
        except ValueError:  # only where a foreign state says that another text began the string
            return ""

    json_steps: ClassVar[frozenset[str]] = frozenset({"key", "name", "id", "skip", "held", "arguments", "rest"})
    announced_steps: ClassVar[frozenset[str]] = frozenset({"arguments", "rest"})
    steps: ClassVar[Mapping[str, Callable[[Objects, Reader, CallState], bool]]] = {
        "open": _open,
        "body": _body,
        "element": _element,
        "next": _next,
        "more": _more,
        "fence": _fence,
        "first key": _first_key,
        "next key": _next_key,
        "key": _key,
        "colon": _colon,
        "value": _value,
        "name": _name,
        "id": _id,
        "skip": _skip,
        "comma": _comma,
        "begin": _begin,
        "held": _held,
        "arguments": _arguments,
        "rest": _rest,
    }
