"""GLM 4.7: a name and pairs of key and value tags. A call ends a thought."""

from scaleout.parsers.bodies.pairs import Pairs
from scaleout.parsers.format import Calls, Format, Thought
from scaleout.parsers.shapes.call import CallShape
from scaleout.parsers.shapes.tagged import TaggedArguments

_PAIRS = Pairs(
    key_open="<arg_key>",
    key_close="</arg_key>",
    value_open="<arg_value>",
    value_close="</arg_value>",
    call_end="</tool_call>",
)


def tagged_shape(newline: str) -> CallShape:
    """The calls of a version that writes `newline` between its tags."""
    return CallShape(
        pairs=(("<tool_call>", newline, "</tool_call>"),),
        arguments=TaggedArguments(
            open="<arg_key>",
            text=f"</arg_key>{newline}<arg_value>",
            close=f"</arg_value>{newline}",
            ends=("</arg_value>", "<arg_key>", "</tool_call>"),
        ),
        separator=newline,
        trigger="<tool_call>",
    )


FORMAT = Format(
    name="glm47",
    thought=Thought(),
    calls=Calls(
        open={"<tool_call>": _PAIRS},
        close=("</tool_call>",),
        outer=("</tool_call>",),
        shapes=(tagged_shape(""),),
    ),
    tokens=(
        *("<think>", "</think>", "<tool_call>", "</tool_call>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    required=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    end_tokens=("<|user|>", "<|observation|>", "<|endoftext|>"),
    turn=("<|assistant|>",),
    tool_parsers=("ling3", "poolside_v1"),
    signs=(("<tool_call>", "<arg_key>", "<arg_value>"),),
)
