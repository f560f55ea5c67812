"""Hermes 2 and 3, Qwen2.5, and the calls of Qwen3: one call object per pair of tags. No thoughts."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape, JsonArguments

WITH_SCHEMA = CallShape(
    pairs=(('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),), separator="\n", trigger="<tool_call>"
)
"""For families that no recorded answer ties to the reference's words."""

FORMAT = Format(
    name="hermes",
    calls=Calls(
        open={"<tool_call>": Objects()},
        close=("</tool_call>",),
        outer=("</tool_call>",),
        shapes=(
            CallShape(
                pairs=(
                    ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
                    ('<tool_call>{"name": "', '", "arguments": ', "}</tool_call>"),
                ),
                arguments=JsonArguments(as_peer=True),
                trigger="<tool_call>",
            ),
        ),
    ),
    tokens=("<tool_call>", "</tool_call>"),
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    turn=("<|im_start|>",),
    tool_parsers=("hermes", "qwen3_json"),
    signs=(("<tool_call>", "</tool_call>", '"arguments"'), ("<tool_call>", "</tool_call>", "<args-json-object>")),
)
