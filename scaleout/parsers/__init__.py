"""Text → reasoning, content and tool calls, chunk by chunk. Knows no tokens, requests, HTTP or models: only how families write."""

from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format, Thought, bind, compose
from scaleout.parsers.machine import begin, feed, finish, load_state, place
from scaleout.parsers.registry import FORMATS, detect_format, find_format
from scaleout.parsers.response_template import read_response_template
from scaleout.parsers.state import ParserState, dump_state

__all__ = [
    "FORMATS",
    "Calls",
    "Format",
    "Opening",
    "ParserState",
    "Thought",
    "begin",
    "bind",
    "compose",
    "detect_format",
    "dump_state",
    "feed",
    "find_format",
    "finish",
    "load_state",
    "place",
    "read_response_template",
]
