"""Qwen3-Coder: functions and parameters as tags, each value on lines of its own."""

from scaleout.parsers.bodies.tagged import Tagged
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape
from scaleout.parsers.shapes.tagged import TaggedArguments

_FUNCTION = Tagged(
    call="<function=",
    call_end="</function>",
    parameter="<parameter=",
    parameter_end="</parameter>",
    trim=True,
)

FORMAT = Format(
    name="qwen3_coder",
    calls=Calls(
        open={"<tool_call>": _FUNCTION},
        inner={"<function=": Opening(_FUNCTION, "name")},
        close=("</tool_call>",),
        outer=("</tool_call>",),
        shapes=(
            CallShape(
                pairs=(("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"),),
                arguments=TaggedArguments(
                    open="<parameter=",
                    text=">\n",
                    close="\n</parameter>\n",
                    ends=("</parameter>", "<parameter=", "</function>"),
                ),
                separator="\n",
                trigger="<tool_call>",
            ),
        ),
    ),
    tokens=("<tool_call>", "</tool_call>"),
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    turn=("<|im_start|>",),
    tool_parsers=("step3p5",),
    signs=(("<tool_call>", "<function=", "<parameter="),),
)
