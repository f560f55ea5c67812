"""Qwen3-Coder: functions and parameters as tags, each value on lines of its own."""

from scaleout.parsers.bodies.tagged import Tagged
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format

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
    ),
    tokens=("<tool_call>", "</tool_call>"),
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    turn=("<|im_start|>",),
    signs=(("<tool_call>", "<function=", "<parameter="),),
)
