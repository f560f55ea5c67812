"""LFM2: a list of Python calls between two tokens."""

from scaleout.parsers.bodies.pythonic import Pythonic
from scaleout.parsers.format import Calls, Format

FORMAT = Format(
    name="lfm2",
    calls=Calls(
        open={"<|tool_call_start|>": Pythonic()},
        close=("<|tool_call_end|>",),
        outer=("<|tool_call_end|>",),
    ),
    tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
    required=("<|tool_call_start|>", "<|tool_call_end|>"),
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    turn=("<|im_start|>",),
    signs=(("<|tool_call_start|>", "<|tool_call_end|>"),),
)
