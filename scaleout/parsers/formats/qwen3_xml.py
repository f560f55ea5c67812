"""Qwen3 models that think and write the calls of Qwen3-Coder. A call ends a thought."""

from attrs import evolve

from scaleout.parsers.format import Thought
from scaleout.parsers.formats.qwen3_coder import FORMAT as CODER

FORMAT = evolve(
    CODER,
    name="qwen3_xml",
    thought=Thought(),
    tokens=("<think>", "</think>", *CODER.tokens),
    tool_parsers=(),
    signs=tuple((*group, "<think>", "</think>") for group in CODER.signs),
)
