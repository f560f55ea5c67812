"""Apertus: an array of objects whose keys are the functions."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape

FORMAT = Format(
    name="apertus",
    calls=Calls(
        open={"<|tools_prefix|>": Objects(array="either", separators=",", stray="stray", keyed=True)},
        close=("<|tools_suffix|>",),
        outer=("<|tools_suffix|>",),
        strays={"stray": ("]",)},
        shapes=(
            CallShape(
                pairs=(('{"', '": ', "}"),),
                separator=", ",
                sections=(("<|tools_prefix|>[", "]<|tools_suffix|>"),),
                trigger="<|tools_prefix|>",
            ),
        ),
    ),
    tokens=("<|tools_prefix|>", "<|tools_suffix|>"),
    required=("<|tools_prefix|>", "<|tools_suffix|>"),
    end_tokens=("<|assistant_end|>", "</s>"),
    turn=("<|assistant_start|>",),
    signs=(("<|tools_prefix|>", "<|tools_suffix|>"),),
)
