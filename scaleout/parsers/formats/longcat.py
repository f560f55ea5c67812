"""LongCat: the calls of hermes between tags of its own."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape

FORMAT = Format(
    name="longcat",
    calls=Calls(
        open={"<longcat_tool_call>": Objects()},
        close=("</longcat_tool_call>",),
        outer=("</longcat_tool_call>",),
        shapes=(
            CallShape(
                pairs=(('<longcat_tool_call>\n{"name": "', '", "arguments": ', "}\n</longcat_tool_call>"),),
                separator="\n",
                trigger="<longcat_tool_call>",
            ),
        ),
    ),
    tokens=("<longcat_tool_call>", "</longcat_tool_call>"),
    end_tokens=("</longcat_s>",),
    turn=(" ASSISTANT:",),
    signs=(("<longcat_tool_call>", "</longcat_tool_call>"),),
)
