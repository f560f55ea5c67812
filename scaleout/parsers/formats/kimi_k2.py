"""Kimi K2 and K2-Thinking: a section of calls whose headers are the ids as well."""

from scaleout.parsers.bodies.slots import Slots
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.call import NUMBER, CallShape, JsonArguments

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_BODY = Slots(call=_CALL, name_end=(_ARGUMENTS,), counted=True)

FORMAT = Format(
    name="kimi_k2",
    thought=Thought(),
    calls=Calls(
        open={_SECTION: Opening(_BODY, "section"), _CALL: Opening(_BODY, "name")},
        close=(_CALL_END, _SECTION_END),
        outer=(_SECTION_END,),
        shapes=(
            CallShape(
                pairs=((f"{_CALL}functions.", f":{NUMBER}{_ARGUMENTS}", _CALL_END),),
                arguments=JsonArguments(quoted=False),
                sections=((_SECTION, _SECTION_END),),
                trigger=_SECTION,
            ),
        ),
    ),
    tokens=("<think>", "</think>", _SECTION, _CALL, _ARGUMENTS, _CALL_END, _SECTION_END),
    required=(_SECTION, _CALL, _ARGUMENTS, _CALL_END, _SECTION_END),
    end_tokens=("<|im_end|>", "[EOS]"),
    turn=("<|im_assistant|>", "<|im_middle|>"),
    signs=((_SECTION, _CALL, _ARGUMENTS),),
)
