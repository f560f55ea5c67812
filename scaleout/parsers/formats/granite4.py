"""Granite 4: the calls of hermes in another chat frame."""

from attrs import evolve

from scaleout.parsers.format import reshaped
from scaleout.parsers.formats.hermes import FORMAT as HERMES
from scaleout.parsers.formats.hermes import WITH_SCHEMA

FORMAT = evolve(
    HERMES,
    name="granite4",
    calls=reshaped(HERMES, WITH_SCHEMA),
    end_tokens=("<|end_of_text|>",),
    turn=("<|start_of_role|>",),
    tool_parsers=(),
    signs=(("<|start_of_role|>", "<tool_call>", "</tool_call>", '"arguments"'),),
)
