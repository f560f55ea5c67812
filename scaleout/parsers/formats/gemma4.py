"""Gemma 4: a channel for thoughts, calls in braces with a token as quotation mark. A call ends a thought."""

from scaleout.parsers.bodies.braces import Braces
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.braces import BraceArguments
from scaleout.parsers.shapes.call import CallShape

_TOKENS = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>')

FORMAT = Format(
    name="gemma4",
    thought=Thought(open=("<|channel>",), close=("<channel|>",), label="thought\n"),
    calls=Calls(
        open={"<|tool_call>": Braces(delimiter='<|"|>')},
        close=("<tool_call|>",),
        outer=("<tool_call|>",),
        shapes=(
            CallShape(
                pairs=(("<|tool_call>call:", "{", "}<tool_call|>"),),
                arguments=BraceArguments('<|"|>'),
                trigger="<|tool_call>",
            ),
        ),
    ),
    tokens=_TOKENS,
    required=_TOKENS,
    end_tokens=("<turn|>", "<|tool_response>"),
    turn=("<|turn>",),
    signs=(("<|turn>", "<|tool_call>", '<|"|>'),),
)
