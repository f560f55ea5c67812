"""Step3: invoke and parameter tags in a section of calls. A call in a thought is thought text."""

from scaleout.parsers.bodies.tagged import Tagged
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.call import CallShape
from scaleout.parsers.shapes.tagged import TaggedArguments

_SECTION, _SECTION_END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"
_INVOKE = Tagged(
    before=(_CALL, "function", _SEPARATOR),
    call="<steptml:invoke name=",
    call_end="</steptml:invoke>",
    parameter="<steptml:parameter name=",
    parameter_end="</steptml:parameter>",
)

FORMAT = Format(
    name="step3",
    thought=Thought(ends_at_call=False),
    calls=Calls(
        open={_SECTION: _INVOKE, _CALL: _INVOKE},
        close=(_CALL_END, _SECTION_END),
        outer=(_SECTION_END,),
        shapes=(
            CallShape(
                pairs=(
                    (f'{_CALL}function{_SEPARATOR}<steptml:invoke name="', '">', f"</steptml:invoke>{_CALL_END}\n"),
                ),
                arguments=TaggedArguments(
                    open='<steptml:parameter name="',
                    text='">',
                    close="</steptml:parameter>",
                    ends=("</steptml:parameter>", "<steptml:parameter name=", "</steptml:invoke>"),
                ),
                sections=((f"{_SECTION}\n", _SECTION_END),),
                trigger=_SECTION,
            ),
        ),
    ),
    tokens=("<think>", "</think>", _SECTION, _CALL, _SEPARATOR, _CALL_END, _SECTION_END),
    required=(_SECTION, _CALL, _SEPARATOR, _CALL_END, _SECTION_END),
    end_tokens=("<|EOT|>",),
    turn=("<|BOT|>",),
    signs=((_SECTION, _CALL, "steptml:invoke"), (_SECTION, _CALL)),
)
