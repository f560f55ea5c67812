"""Command R7B and Command A: blocks for thoughts, answers and calls, each between two tokens; citations are reduced to their words."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.call import NUMBER, CallShape

_ARRAY = Objects(array="always", separators=",", stray="stray", name_key="tool_name", id_key="tool_call_id")
_ANSWER = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")

FORMAT = Format(
    name="cohere_command3",
    thought=Thought(open=("<|START_THINKING|>",), close=("<|END_THINKING|>",)),
    calls=Calls(
        open={"<|START_ACTION|>": _ARRAY},
        close=("<|END_ACTION|>",),
        outer=("<|END_ACTION|>",),
        strays={"stray": ("]",)},
        shapes=(
            CallShape(
                pairs=((f'{{"tool_call_id": "{NUMBER}", "tool_name": "', '", "parameters": ', "}"),),
                separator=",\n    ",
                sections=(("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"),),
                trigger="<|START_ACTION|>",
            ),
        ),
    ),
    tokens=("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>", *_ANSWER),
    required=("<|START_ACTION|>", "<|END_ACTION|>"),
    end_tokens=("<|END_OF_TURN_TOKEN|>",),
    turn=("<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"),
    layout=_ANSWER,
    erased={"<co>": "", "</co": ">"},
    signs=(("<|START_ACTION|>", "<|END_ACTION|>", "<|CHATBOT_TOKEN|>"),),
)
