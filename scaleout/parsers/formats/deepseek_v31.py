"""DeepSeek V3.1: a section of calls, each a name and the arguments. A call in a thought is thought text."""

from scaleout.parsers.bodies.slots import Slots
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.formats.deepseek_v3 import BEGIN, CALL, CALL_END, END, SEPARATOR
from scaleout.parsers.shapes.call import CallShape, JsonArguments

_CALL = Slots(call=CALL, name_end=(SEPARATOR,))

FORMAT = Format(
    name="deepseek_v31",
    thought=Thought(ends_at_call=False),
    calls=Calls(
        open={BEGIN: Opening(_CALL, "section"), CALL: Opening(_CALL, "name")},
        close=(CALL_END, END),
        outer=(END,),
        shapes=(
            CallShape(
                pairs=((CALL, SEPARATOR, CALL_END),),
                arguments=JsonArguments(quoted=False),
                sections=((BEGIN, END),),
                trigger=BEGIN,
            ),
        ),
    ),
    tokens=("<think>", "</think>", BEGIN, CALL, SEPARATOR, CALL_END, END),
    required=(BEGIN, CALL, SEPARATOR, CALL_END, END),
    end_tokens=("<｜end▁of▁sentence｜>",),
    turn=("<｜Assistant｜>",),
    reasoning_parsers=("deepseek_v3",),
    signs=((BEGIN, CALL, "<think>", "thinking"),),
)
