"""LFM2: a list of Python calls between two tokens."""

from scaleout.parsers.bodies.pythonic import Pythonic
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape
from scaleout.parsers.shapes.python import PythonArguments

FORMAT = Format(
    name="lfm2",
    calls=Calls(
        open={"<|tool_call_start|>": Pythonic()},
        close=("<|tool_call_end|>",),
        outer=("<|tool_call_end|>",),
        shapes=(
            CallShape(
                pairs=(("", "(", ")"),),
                arguments=PythonArguments(),
                separator=", ",
                sections=(("<|tool_call_start|>[", "]<|tool_call_end|>"),),
                trigger="<|tool_call_start|>",
            ),
        ),
    ),
    tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
    required=("<|tool_call_start|>", "<|tool_call_end|>"),
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    turn=("<|im_start|>",),
    signs=(("<|tool_call_start|>", "<|tool_call_end|>"),),
)
