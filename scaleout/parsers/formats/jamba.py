"""Jamba 1.5: an array of call objects between two tokens."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape

FORMAT = Format(
    name="jamba",
    calls=Calls(
        open={"<tool_calls>": Objects(array="always", separators=",", stray="stray")},
        close=("</tool_calls>",),
        outer=("</tool_calls>",),
        strays={"stray": ("]",)},
        shapes=(
            CallShape(
                pairs=(('{"name": "', '", "arguments": ', "}"),),
                separator=",\n    ",
                sections=(("<tool_calls>[\n    ", "\n]</tool_calls>"), ("<tool_calls>[", "]</tool_calls>")),
                trigger="<tool_calls>",
            ),
        ),
    ),
    tokens=("<tool_calls>", "</tool_calls>"),
    required=("<tool_calls>", "</tool_calls>"),
    end_tokens=("<|eom|>", "<|endoftext|>"),
    turn=("<|bom|>",),
    signs=(("<|bom|>", "<tool_calls>", "</tool_calls>"),),
)
