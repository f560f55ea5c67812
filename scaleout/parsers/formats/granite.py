"""Granite 3: thoughts that begin and end with set phrases, and an array of call objects without an end marker."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.call import CallShape

_ARRAY = Objects(array="always", separators=",", stray="stray")


def _shape(opener: str, tokens: tuple[str, ...]) -> CallShape:
    return CallShape(
        pairs=(('{"name": "', '", "arguments": ', "}"),),
        separator=", ",
        sections=((opener + "[", "]"),),
        trigger=opener,
        thought=("Here is my thought process:", "Here is my response:"),
        tokens=tokens,
    )


FORMAT = Format(
    name="granite",
    thought=Thought(
        open=(),
        first=("Here is my thought process:", "Here's my thought process:"),
        close=("Here is my response:", "Here's my response:"),
        strays=False,
    ),
    calls=Calls(
        open={"<|tool_call|>": _ARRAY, "<tool_call>": _ARRAY},
        strays={"stray": ("]",)},
        shapes=(_shape("<|tool_call|>", ("<|tool_call|>",)), _shape("<tool_call>", ())),
    ),
    tokens=("<|tool_call|>",),
    end_tokens=("<|end_of_text|>",),
    turn=("<|start_of_role|>", "<|end_of_role|>"),
    signs=(("<|start_of_role|>", "<|tool_call|>"), ("<|start_of_role|>", "Here is my thought process:")),
)
