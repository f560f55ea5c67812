"""Granite 4: the calls of hermes in another chat frame."""

from attrs import evolve

from scaleout.parsers.formats.hermes import FORMAT as HERMES

FORMAT = evolve(
    HERMES,
    name="granite4",
    end_tokens=("<|end_of_text|>",),
    turn=("<|start_of_role|>",),
    tool_parsers=(),
    signs=(("<|start_of_role|>", "<tool_call>", "</tool_call>", '"arguments"'),),
)
