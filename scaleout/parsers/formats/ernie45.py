"""ERNIE 4.5 Thinking: the answer between response tags that are layout, the calls of hermes. A call in a thought is thought text."""

from attrs import evolve

from scaleout.parsers.format import Thought, reshaped
from scaleout.parsers.formats.hermes import FORMAT as HERMES
from scaleout.parsers.formats.hermes import WITH_SCHEMA

FORMAT = evolve(
    HERMES,
    name="ernie45",
    calls=reshaped(HERMES, WITH_SCHEMA),
    thought=Thought(ends_at_call=False),
    tokens=("<think>", "</think>", "<response>", "</response>", *HERMES.tokens),
    end_tokens=("<|im_end|>", "</s>"),
    layout=("<response>", "</response>"),
    tool_parsers=(),
    signs=(("<|im_start|>", "<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>"),),
)
