"""GLM 4.7: a name and pairs of key and value tags. A call ends a thought."""

from scaleout.parsers.bodies.pairs import Pairs
from scaleout.parsers.format import Calls, Format, Thought

_PAIRS = Pairs(
    key_open="<arg_key>",
    key_close="</arg_key>",
    value_open="<arg_value>",
    value_close="</arg_value>",
    call_end="</tool_call>",
)

FORMAT = Format(
    name="glm47",
    thought=Thought(),
    calls=Calls(open={"<tool_call>": _PAIRS}, close=("</tool_call>",), outer=("</tool_call>",)),
    tokens=(
        *("<think>", "</think>", "<tool_call>", "</tool_call>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    required=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    end_tokens=("<|user|>", "<|observation|>", "<|endoftext|>"),
    turn=("<|assistant|>",),
    signs=(("<tool_call>", "<arg_key>", "<arg_value>"),),
)
