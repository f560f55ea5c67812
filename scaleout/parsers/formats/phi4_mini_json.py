"""Phi-4-mini: the word `functools` and an array of call objects."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format

FORMAT = Format(
    name="phi4_mini_json",
    calls=Calls(
        open={"functools[": Opening(Objects(array="always", separators=",", stray="stray"), "element")},
        strays={"stray": ("]",)},
    ),
    end_tokens=("<|end|>", "<|endoftext|>"),
    turn=("<|assistant|>",),
    signs=(("<|tool|>", "<|/tool|>", "<|assistant|>"),),
)
