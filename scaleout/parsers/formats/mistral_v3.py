"""Mistral before tokenizer v11 (7B v0.3, Nemo, Mixtral): a token, then an array of call objects."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape

FORMAT = Format(
    name="mistral_v3",
    calls=Calls(
        open={"[TOOL_CALLS]": Objects(array="either", separators=",", stray="stray")},
        strays={"stray": ("]",)},
        shapes=(
            CallShape(
                pairs=(('{"name": "', '", "arguments": ', "}"),),
                separator=", ",
                sections=(("[TOOL_CALLS] [", "]"),),
                trigger="[TOOL_CALLS]",
            ),
        ),
    ),
    tokens=("[TOOL_CALLS]",),
    required=("[TOOL_CALLS]",),
    end_tokens=("</s>",),
    turn=("[/INST]",),
    signs=(("[TOOL_CALLS]",),),
)
