"""An arguments object that is written by us, left to right, from values that the model tagged (FORMATS 3.5)."""

from __future__ import annotations

from scaleout.parsers.literals import escape, quote, typed
from scaleout.parsers.machine import Reader
from scaleout.parsers.state import HOLD_LIMIT, CallState, grown, joined, length
from scaleout.parsers.stream import Markers

OVERRUN = "overrun"
"""What `gather` returns instead of a marker when it had to give the call up."""

JSON_OR_TEXT = "*"
"""The type of a value of which nothing is known: what it spells, if that is JSON."""


def begin_object(reader: Reader, name: str, id: str | None = None) -> bool:
    """Announce a call whose arguments we write. False: the region has failed instead."""
    if not reader.announce(name, id):
        return False
    reader.argue("{")
    return True


def write_key(reader: Reader, call: CallState, key: str) -> None:
    reader.argue(("" if call.first else ", ") + quote(reader.spell(key)) + ": ")
    call.first, call.key, call.value = False, "", ()


def begin_value(reader: Reader, call: CallState, key: str, kinds: str) -> None:
    """The key, and the opening quote of a value that can only be a string. `call.step` becomes the step that reads it."""
    write_key(reader, call, key)
    call.kinds = "" if kinds == "s" else kinds
    if not call.kinds:
        reader.argue('"')
    call.step = "held" if call.kinds else "text"


def argue_text(reader: Reader, text: str) -> None:
    """A piece of a string value."""
    if text:
        reader.argue(escape(reader.spell(text)))


def end_held(reader: Reader, call: CallState) -> None:
    """A value that is not known to be a string is complete."""
    text = reader.spell(joined(call.value))
    if call.kinds == JSON_OR_TEXT:
        reader.argue(typed(text, ""))
    else:
        reader.argue(typed(text, call.kinds))
    call.value = ()


def gather(reader: Reader, call: CallState, ends: Markers) -> str:
    """Read up to the first of `ends`, which is read too and returned; "" when it has not come yet. `gathered` has the text before it.

    An announced call that makes us hold more than the limit ends here: what was held and the rest are content (FORMATS R16).
    """
    text, at = reader.text, reader.at
    found = ends.whole.search(text, at)
    stop = found.start() if found else len(text) if reader.final else ends.sure(text, at)
    if not call.announced:
        call.mark = reader.offset() if call.mark < 0 else call.mark
    else:
        call.value = grown(call.value, text[at:stop])
    reader.at = found.end() if found else stop
    if call.announced and (over := length(call.value) - HOLD_LIMIT) > 0:
        reader.at = stop - over
        held = reader.spell(joined(call.value)[:HOLD_LIMIT])
        reader.end("malformed", call.step)
        reader.leave()
        reader.say("content", held)
        return OVERRUN
    return found[0] if found else ""


def gathered(reader: Reader, call: CallState, end: str) -> str:
    """The text that was gathered before the marker `end`. Before the announcement it is a part of the region's raw text."""
    text = joined(call.value) if call.announced else reader.cut(call.mark, reader.offset() - len(end))
    call.value, call.mark = (), -1
    return text


def say_junk(reader: Reader, call: CallState, before: str = "") -> None:
    """Text inside an open call that belongs to nothing is content; nothing is dropped silently."""
    junk = (before + joined(call.value)).strip()
    call.value = ()
    if junk:
        reader.say("content", junk)
        reader.state.edge = True
