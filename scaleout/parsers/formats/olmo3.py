"""Olmo 3: Python calls, one per line, between tags that are plain text. A call in a thought is thought text."""

from scaleout.parsers.bodies.pythonic import Pythonic
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.call import CallShape
from scaleout.parsers.shapes.python import PythonArguments

FORMAT = Format(
    name="olmo3",
    thought=Thought(ends_at_call=False),
    calls=Calls(
        open={"<function_calls>": Pythonic(brackets=False)},
        close=("</function_calls>",),
        outer=("</function_calls>",),
        shapes=(
            CallShape(
                pairs=(("", "(", ")"),),
                arguments=PythonArguments(),
                separator="\n",
                sections=(("<function_calls>\n", "\n</function_calls>"), ("<function_calls>", "</function_calls>")),
                trigger="<function_calls>",
                thought=("<think>", "</think>"),
            ),
        ),
    ),
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    turn=("<|im_start|>",),
    signs=(("<function_calls>", "</function_calls>", "<functions>"),),
)
