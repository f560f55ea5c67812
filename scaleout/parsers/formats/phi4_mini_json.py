"""Phi-4-mini: the word `functools` and an array of call objects."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape

FORMAT = Format(
    name="phi4_mini_json",
    calls=Calls(
        open={"functools[": Opening(Objects(array="always", separators=",", stray="stray"), "element")},
        strays={"stray": ("]",)},
        shapes=(
            CallShape(
                pairs=(('{"name": "', '", "arguments": ', "}"),),
                separator=", ",
                sections=(("functools[", "]"),),
                trigger="functools[",
            ),
        ),
    ),
    end_tokens=("<|end|>", "<|endoftext|>"),
    turn=("<|assistant|>",),
    signs=(("<|tool|>", "<|/tool|>", "<|assistant|>"),),
)
