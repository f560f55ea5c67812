"""Apertus: an array of objects whose keys are the functions."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.format import Calls, Format

FORMAT = Format(
    name="apertus",
    calls=Calls(
        open={"<|tools_prefix|>": Objects(array="either", separators=",", stray="stray", keyed=True)},
        close=("<|tools_suffix|>",),
        outer=("<|tools_suffix|>",),
        strays={"stray": ("]",)},
    ),
    tokens=("<|tools_prefix|>", "<|tools_suffix|>"),
    required=("<|tools_prefix|>", "<|tools_suffix|>"),
    end_tokens=("<|assistant_end|>", "</s>"),
    turn=("<|assistant_start|>",),
    signs=(("<|tools_prefix|>", "<|tools_suffix|>"),),
)
