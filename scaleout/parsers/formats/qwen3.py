"""Qwen3: thoughts that a call ends, and the calls of hermes."""

from attrs import evolve

from scaleout.parsers.format import Thought
from scaleout.parsers.formats.hermes import FORMAT as HERMES

FORMAT = evolve(
    HERMES,
    name="qwen3",
    thought=Thought(),
    tokens=("<think>", "</think>", *HERMES.tokens),
    tool_parsers=(),
    reasoning_parsers=("qwen3",),
    signs=(("<|im_start|>", "<tool_call>", "</tool_call>", "<think>", "</think>", '"arguments"'),),
)
