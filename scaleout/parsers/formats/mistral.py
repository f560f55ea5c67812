"""Mistral from tokenizer v11 on (Small 3.2, Magistral, Devstral): a name, a token, the arguments; thoughts between tokens."""

from scaleout.parsers.bodies.slots import Slots
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.formats.mistral_v3 import FORMAT as V3
from scaleout.parsers.shapes.call import CallShape, JsonArguments

FORMAT = Format(
    name="mistral",
    thought=Thought(open=("[THINK]",), close=("[/THINK]",)),
    calls=Calls(
        open={"[TOOL_CALLS]": Slots(name_end=("[ARGS]",), call_id="[CALL_ID]", brace=True, closed=False)},
        shapes=(
            CallShape(
                pairs=(("[TOOL_CALLS]", "[ARGS]", ""),),
                arguments=JsonArguments(quoted=False),
                trigger="[TOOL_CALLS]",
            ),
        ),
    ),
    tokens=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    required=("[TOOL_CALLS]", "[ARGS]"),
    otherwise=V3,
    end_tokens=("</s>",),
    turn=("[/INST]",),
    signs=(("[TOOL_CALLS]", "[ARGS]"),),
)
