"""Llama 3.2 and ToolACE: a list of Python calls that begins the message."""

from scaleout.parsers.bodies.pythonic import Pythonic
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape
from scaleout.parsers.shapes.python import PythonArguments

FORMAT = Format(
    name="pythonic",
    calls=Calls(
        first={"[": Pythonic(first="call")},
        shapes=(
            CallShape(pairs=(("", "(", ")"),), arguments=PythonArguments(), separator=", ", sections=(("[", "]"),)),
        ),
    ),
    end_tokens=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    turn=("<|start_header_id|>", "<|end_header_id|>"),
)
