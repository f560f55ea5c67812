"""InternLM 2: an action token, the plugin token, a call object. Other actions are no calls."""

from scaleout.parsers.bodies.objects import Objects
from scaleout.parsers.format import Calls, Format
from scaleout.parsers.shapes.call import CallShape

FORMAT = Format(
    name="internlm",
    calls=Calls(
        open={"<|action_start|>": Objects(prefix="<|plugin|>")},
        close=("<|action_end|>",),
        outer=("<|action_end|>",),
        shapes=(
            CallShape(
                pairs=(('<|action_start|><|plugin|>\n{"name": "', '", "parameters": ', "}<|action_end|>"),),
                trigger="<|action_start|><|plugin|>",
            ),
        ),
    ),
    tokens=("<|action_start|>", "<|plugin|>", "<|interpreter|>", "<|action_end|>"),
    required=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    end_tokens=("<|im_end|>", "</s>"),
    turn=("<|im_start|>",),
    signs=(("<|action_start|>", "<|plugin|>", "<|action_end|>"),),
)
