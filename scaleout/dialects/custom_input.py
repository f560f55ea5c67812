"""The text for a custom tool, out of the JSON that a model writes for it: `{"input": "ls -la"}` → `ls -la`, as it comes."""

from __future__ import annotations

import re
from typing import Literal

from attrs import define

from scaleout.core import Json
from scaleout.dialects.responses_tools import PAYLOAD
from scaleout.errors import BadState

Phase = Literal["before", "inside", "behind", "verbatim"]
_PHASES: tuple[Phase, ...] = ("before", "inside", "behind", "verbatim")
_OPENING = ("{", f'"{PAYLOAD}"', ":", '"')
MAX_OPENING = 64
"""Characters, layout included, in which the payload must have begun; else the arguments are passed on as they stand."""
MAX_ESCAPE = 12
"""`\\ud83d\\ude42`: the longest escape of one character."""

_SIMPLE = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPECIAL = re.compile(r'["\\]')
_HEX = re.compile(r"[0-9a-fA-F]{0,4}")


@define
class CustomInput:
    """Where in the arguments the text so far has ended. `held` is what cannot be read without what follows it."""

    phase: Phase = "before"
    held: str = ""

    def feed(self, text: str) -> str:
        """The next piece of arguments → the next piece of the payload. The result does not depend on how it is cut."""
        text, self.held = self.held + text, ""
        if self.phase == "before":
            start = _find_payload(text)
            if start is None and len(text) <= MAX_OPENING:
                self.held = text
                return ""
            self.phase = "inside" if start else "verbatim"
            text = text[start or 0 :]
        if self.phase == "inside":
            return self._read_string(text)
        return text if self.phase == "verbatim" else ""

    def finish(self) -> str:
        """What is left when the arguments end early: text that never became a payload."""
        held, self.held = self.held, ""
        return held if self.phase == "before" else ""

    def _read_string(self, text: str) -> str:
        out: list[str] = []
        at = 0
        while (found := _SPECIAL.search(text, at)) is not None:
            out.append(text[at : found.start()])
            if found.group() == '"':
                self.phase = "behind"
                return "".join(out)
            character, at = _read_escape(text, found.start())
            if character is None:
                self.held = text[found.start() :]
                return "".join(out)
            out.append(character)
        out.append(text[at:])
        return "".join(out)


def _find_payload(text: str) -> int | None:
    """Where the payload begins; 0 when it never will; None while that is open."""
    at = 0
    for part in _OPENING:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if text.startswith(part, at):
            at += len(part)
        else:
            return None if part.startswith(text[at:]) else 0
    return at if at <= MAX_OPENING else 0


def _read_escape(text: str, at: int) -> tuple[str | None, int]:
    """The character that is escaped at `at`, and where the text goes on; None while it is not complete."""
    kind = text[at + 1 : at + 2]
    if kind != "u":
        return (_SIMPLE.get(kind, "\\" + kind), at + 2) if kind else (None, at)
    code, end = _read_hex(text, at + 2)
    if code is None:
        return (None, at) if end == len(text) else (text[at:end], end)
    if not 0xD800 <= code < 0xE000:
        return chr(code), end
    # Half a character: JSON writes what lies beyond 16 bits as two.
    follows = text[end : end + 2]
    if code < 0xDC00 and "\\u".startswith(follows):
        low, behind = _read_hex(text, end + 2)
        if len(follows) < 2 or (low is None and behind == len(text)):
            return None, at
        if low is not None and 0xDC00 <= low < 0xE000:
            return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), behind
    return "\ufffd", end


def _read_hex(text: str, at: int) -> tuple[int | None, int]:
    found = _HEX.match(text, at)
    digits = found.group() if found else ""
    return (int(digits, 16) if len(digits) == 4 else None), at + len(digits)


def unwrap(arguments: str) -> str:
    """The payload of whole arguments."""
    state = CustomInput()
    return state.feed(arguments) + state.finish()


def dump_input(state: CustomInput) -> Json:
    return [_PHASES.index(state.phase), state.held]


def load_input(value: Json) -> CustomInput:
    """Raises `BadState` on anything that `dump_input` cannot have written."""
    match value:
        case [int(phase), str(held)] if 0 <= phase < len(_PHASES) and len(held) <= max(MAX_OPENING, MAX_ESCAPE):
            return CustomInput(_PHASES[phase], held)
    raise BadState("stream_state: bad carry", "stream_state")
