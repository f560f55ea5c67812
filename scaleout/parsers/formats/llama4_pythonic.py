"""Llama 4: a list of Python calls that begins the message, or stands between two tokens anywhere."""

from scaleout.parsers.bodies.pythonic import Pythonic
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape
from scaleout.parsers.shapes.python import PythonArguments

_LIST = Pythonic()

FORMAT = Format(
    name="llama4_pythonic",
    calls=Calls(
        open={"<|python_start|>": _LIST},
        first={"[": Opening(_LIST, "call")},
        close=("<|python_end|>",),
        outer=("<|python_end|>",),
        shapes=(
            CallShape(
                pairs=(("", "(", ")"),),
                arguments=PythonArguments(),
                separator=", ",
                sections=(("<|python_start|>[", "]<|python_end|>"), ("[", "]")),
                trigger="<|python_start|>",
                tokens=("<|python_start|>", "<|python_end|>"),
            ),
            CallShape(pairs=(("", "(", ")"),), arguments=PythonArguments(), separator=", ", sections=(("[", "]"),)),
        ),
    ),
    tokens=("<|python_start|>", "<|python_end|>"),
    end_tokens=("<|eot|>", "<|eom|>", "<|end_of_text|>"),
    turn=("<|header_start|>", "<|header_end|>"),
    signs=(("<|header_start|>", "<|python_start|>", "<|eot|>"),),
)
