"""DeepSeek V3 and R1-0528: a section of calls, each a type, a name and the arguments in a fence."""

from scaleout.parsers.bodies.slots import Slots
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape, JsonArguments

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

_CALL = Slots(call=CALL, type_end=SEPARATOR, name_end=("\n",), fence=True, after="fence")

FORMAT = Format(
    name="deepseek_v3",
    calls=Calls(
        open={BEGIN: Opening(_CALL, "section"), CALL: Opening(_CALL, "type")},
        close=(CALL_END, END),
        outer=(END,),
        fences={"fence": ("```",)},
        shapes=(
            CallShape(
                pairs=((f"{CALL}function{SEPARATOR}", "\n```json\n", f"\n```{CALL_END}"),),
                arguments=JsonArguments(quoted=False, as_peer=True),
                separator="\n",
                sections=((BEGIN, END),),
                trigger=BEGIN,
                foreign=("<think>", "</think>"),
            ),
        ),
    ),
    tokens=(BEGIN, CALL, SEPARATOR, CALL_END, END),
    required=(BEGIN, CALL, SEPARATOR, CALL_END, END),
    end_tokens=("<｜end▁of▁sentence｜>",),
    turn=("<｜Assistant｜>",),
    signs=((BEGIN, CALL, "```json"),),
)
