"""DeepSeek V3.2: calls in DSML tags. A call in a thought is thought text."""

from scaleout.parsers.bodies.tagged import Tagged
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.call import CallShape
from scaleout.parsers.shapes.tagged import TaggedArguments

TAG = "｜DSML｜"
INVOKE = f"<{TAG}invoke name="
CALL = Tagged(
    call=INVOKE,
    call_end=f"</{TAG}invoke>",
    parameter=f"<{TAG}parameter name=",
    parameter_end=f"</{TAG}parameter>",
    attribute=True,
)


def tagged_shape(wrapper: str) -> CallShape:
    """The calls in a wrapper of this name."""
    return CallShape(
        pairs=((f'{INVOKE}"', '">\n', f"</{TAG}invoke>\n"),),
        arguments=TaggedArguments(
            open=f'<{TAG}parameter name="',
            text='" string="true">',
            json='" string="false">',
            close=f"</{TAG}parameter>\n",
            ends=(f"</{TAG}parameter>", f"<{TAG}parameter name=", f"</{TAG}invoke>"),
        ),
        sections=((f"<{TAG}{wrapper}>\n", f"</{TAG}{wrapper}>"),),
        trigger=f"<{TAG}{wrapper}>",
    )


FORMAT = Format(
    name="deepseek_v32",
    thought=Thought(ends_at_call=False),
    calls=Calls(
        open={f"<{TAG}function_calls>": CALL},
        inner={INVOKE: Opening(CALL, "name")},
        close=(f"</{TAG}function_calls>",),
        outer=(f"</{TAG}function_calls>",),
        shapes=(tagged_shape("function_calls"),),
    ),
    tokens=("<think>", "</think>", TAG),
    required=(TAG,),
    end_tokens=("<｜end▁of▁sentence｜>",),
    turn=("<｜Assistant｜>",),
    signs=((TAG, "function_calls>"), (TAG,)),
)
