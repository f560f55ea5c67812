"""Llama 3.1, 3.2, 3.3 and Llama 4 with JSON calls: a bare object at the start of the message, or behind a tag anywhere."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape

_OBJECT = Objects(bare=True, separators=";")

FORMAT = Format(
    name="llama3_json",
    calls=Calls(
        open={"<|python_tag|>": Opening(_OBJECT, "body")},
        first={"{": Opening(_OBJECT, "first key")},
        shapes=(CallShape(pairs=(('{"name": "', '", "parameters": ', "}"),), separator="; "),),
    ),
    tokens=("<|python_tag|>",),
    end_tokens=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    turn=("<|start_header_id|>", "<|end_header_id|>"),
    tool_parsers=("llama4_json",),
    signs=(("<|start_header_id|>", "<|eot_id|>", '"parameters"'),),
)
