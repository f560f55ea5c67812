"""DeepSeek V4: the tags of V3.2 in another wrapper. A call ends a thought."""

from attrs import evolve

from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Thought
from scaleout.parsers.formats.deepseek_v32 import CALL, INVOKE, TAG, tagged_shape
from scaleout.parsers.formats.deepseek_v32 import FORMAT as V32

_OPENERS = (f"<{TAG}tool_calls>", f"<{TAG}toolcalls>", f"<{TAG}tool>")

FORMAT = evolve(
    V32,
    name="deepseek_v4",
    thought=Thought(),
    calls=Calls(
        open=dict.fromkeys(_OPENERS, CALL),
        inner={INVOKE: Opening(CALL, "name")},
        close=(f"</{TAG}tool_calls>",),
        outer=(f"</{TAG}tool_calls>",),
        shapes=(tagged_shape("tool_calls"),),
    ),
    signs=((TAG, "tool_calls>"),),
)
