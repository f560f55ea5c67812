"""DeepSeek R1: the calls of V3; a call in a thought is thought text."""

from attrs import evolve

from scaleout.parsers.format import Thought
from scaleout.parsers.formats.deepseek_v3 import FORMAT as V3

FORMAT = evolve(
    V3,
    name="deepseek_r1",
    thought=Thought(ends_at_call=False),
    tokens=("<think>", "</think>", *V3.tokens),
    tool_parsers=(),
    signs=tuple((*group, "<think>") for group in V3.signs),
)
