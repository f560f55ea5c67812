"""FunctionGemma: the calls of Gemma 4 with other tokens, no thoughts."""

from scaleout.parsers.bodies.braces import Braces
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.braces import BraceArguments
from scaleout.parsers.shapes.call import CallShape

_TOKENS = ("<start_function_call>", "<end_function_call>", "<escape>")

FORMAT = Format(
    name="functiongemma",
    calls=Calls(
        open={"<start_function_call>": Braces(delimiter="<escape>")},
        close=("<end_function_call>",),
        outer=("<end_function_call>",),
        shapes=(
            CallShape(
                pairs=(("<start_function_call>call:", "{", "}<end_function_call>"),),
                arguments=BraceArguments("<escape>"),
                trigger="<start_function_call>",
            ),
        ),
    ),
    tokens=_TOKENS,
    required=_TOKENS,
    end_tokens=("<end_of_turn>", "<start_function_response>"),
    turn=("<start_of_turn>",),
    signs=(_TOKENS,),
)
