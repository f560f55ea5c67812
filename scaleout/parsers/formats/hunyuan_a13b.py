"""Hunyuan A13B: every marker is plain text; the answer stands between tags that are layout. A call in a thought is thought text."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.call import CallShape

FORMAT = Format(
    name="hunyuan_a13b",
    thought=Thought(ends_at_call=False),
    calls=Calls(
        open={"<tool_calls>": Objects(array="always", separators=",", stray="stray")},
        close=("</tool_calls>",),
        outer=("</tool_calls>",),
        strays={"stray": ("]",)},
        shapes=(
            CallShape(
                pairs=(('{"name": "', '", "arguments": ', "}"),),
                separator=", ",
                sections=(
                    ("<tool_calls>[", "]</tool_calls>"),
                    ("<answer>\n<tool_calls>[", "]</tool_calls>\n</answer>"),
                ),
                trigger="<tool_calls>",
                thought=("<think>", "</think>"),
            ),
        ),
    ),
    end_tokens=("<|eos|>",),
    turn=("<|extra_0|>",),
    layout=("<answer>", "</answer>"),
    greeting=("助手：",),
    signs=(("<|extra_0|>", "<tool_calls>"), ("<|extra_0|>", "<answer>")),
)
