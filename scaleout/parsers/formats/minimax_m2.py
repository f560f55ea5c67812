"""MiniMax M2: invoke and parameter tags in a wrapper. A call ends a thought."""

from scaleout.parsers.bodies.tagged import Tagged
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.call import CallShape
from scaleout.parsers.shapes.tagged import TaggedArguments

_INVOKE = Tagged(
    call="<invoke name=",
    call_end="</invoke>",
    parameter="<parameter name=",
    parameter_end="</parameter>",
)

FORMAT = Format(
    name="minimax_m2",
    thought=Thought(),
    calls=Calls(
        open={"<minimax:tool_call>": _INVOKE},
        inner={"<invoke name=": Opening(_INVOKE, "name")},
        close=("</minimax:tool_call>",),
        outer=("</minimax:tool_call>",),
        shapes=(
            CallShape(
                pairs=(('<invoke name="', '">\n', "</invoke>\n"),),
                arguments=TaggedArguments(
                    open='<parameter name="',
                    text='">',
                    close="</parameter>\n",
                    ends=("</parameter>", "<parameter name=", "</invoke>"),
                ),
                sections=(("<minimax:tool_call>\n", "</minimax:tool_call>"),),
                trigger="<minimax:tool_call>",
            ),
        ),
    ),
    tokens=("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
    required=("<minimax:tool_call>", "</minimax:tool_call>"),
    end_tokens=("[e~[",),
    turn=("]~b]",),
    signs=(("<minimax:tool_call>", "<invoke name="), ("<minimax:tool_call>",)),
)
