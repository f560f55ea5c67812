"""Seed-OSS: the tags of Qwen3-Coder between tokens of its own. A call ends a thought, and notes on the budget may stand in one."""

from scaleout.parsers.bodies.tagged import Tagged
from scaleout.parsers.body import Opening
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.call import CallShape
from scaleout.parsers.shapes.tagged import TaggedArguments

_FUNCTION = Tagged(
    call="<function=",
    call_end="</function>",
    parameter="<parameter=",
    parameter_end="</parameter>",
    trim=True,
)
_BUDGET = ("<seed:cot_budget_reflect>", "</seed:cot_budget_reflect>")
_TOKENS = ("<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>")

FORMAT = Format(
    name="seed_oss",
    thought=Thought(open=("<seed:think>",), close=("</seed:think>",), layout=_BUDGET),
    calls=Calls(
        open={"<seed:tool_call>": _FUNCTION},
        inner={"<function=": Opening(_FUNCTION, "name")},
        close=("</seed:tool_call>",),
        outer=("</seed:tool_call>",),
        shapes=(
            CallShape(
                pairs=(("<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>"),),
                arguments=TaggedArguments(
                    open="<parameter=",
                    text=">",
                    close="</parameter>\n",
                    ends=("</parameter>", "<parameter=", "</function>"),
                ),
                separator="\n",
                trigger="<seed:tool_call>",
            ),
        ),
    ),
    tokens=(*_TOKENS, *_BUDGET),
    required=_TOKENS,
    end_tokens=("<seed:eos>",),
    turn=("<seed:bos>",),
    signs=(("<seed:bos>", "<seed:tool_call>", "<seed:think>"),),
)
