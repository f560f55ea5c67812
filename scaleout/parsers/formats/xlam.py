"""xLAM: an array of call objects that begins the message, or stands in a fence; two other markers are accepted before it."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape

_ARRAY = Objects(array="always", separators=",", stray="stray", bare=True, after="fence")

FORMAT = Format(
    name="xlam",
    calls=Calls(
        open={
            "```": Opening(_ARRAY, "fence"),
            "[TOOL_CALLS]": Opening(_ARRAY, "body"),
            "<tool_call>": Opening(_ARRAY, "body"),
        },
        first={"[": Opening(_ARRAY, "element"), "[TOOL_CALLS]": Opening(_ARRAY, "body")},
        close=("</tool_call>",),
        strays={"stray": ("]",)},
        fences={"fence": ("```",)},
        shapes=(CallShape(pairs=(('{"name": "', '", "arguments": ', "}"),), separator=", ", sections=(("[", "]"),)),),
    ),
    tokens=("<tool_call>", "</tool_call>", "[TOOL_CALLS]"),
    end_tokens=("<|im_end|>", "<|eot_id|>", "<|endoftext|>"),
    turn=("<|im_start|>", "<|end_header_id|>"),
)
