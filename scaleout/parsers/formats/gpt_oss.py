"""gpt-oss (harmony): messages with headers; the channel says what is a thought, the recipient what is a call."""

from scaleout.parsers.bodies.headers import Headers
from scaleout.parsers.bodies.slots import Slots
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.call import CallShape, JsonArguments

_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_TOKENS = ("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", *_ENDS)
_HEADER = Headers(start="<|start|>", channel="<|channel|>", message="<|message|>", ends=_ENDS)

FORMAT = Format(
    name="gpt_oss",
    thought=Thought(open=(), close=_ENDS),
    calls=Calls(
        close=_ENDS,
        bodies=(Slots(name_end=()),),
        shapes=(
            CallShape(
                pairs=(
                    ("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""),
                    (" to=functions.", "<|channel|>commentary <|constrain|>json<|message|>", ""),
                ),
                arguments=JsonArguments(quoted=False),
                separator="<|call|><|start|>assistant",
                thought=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
            ),
        ),
    ),
    headers={"<|start|>": _HEADER, "<|channel|>": Opening(_HEADER, "channel")},
    start="header",
    tokens=_TOKENS,
    required=_TOKENS,
    turn=("<|start|>",),
    tool_parsers=("openai",),
    reasoning_parsers=("openai_gptoss",),
    signs=(("<|start|>", "<|channel|>", "<|message|>"),),
)
