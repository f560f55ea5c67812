"""`/inference/v1/generate`: our own wire, and vLLM's."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, evolve

from scaleout.codec import dumps
from scaleout.core import GenerateRequest, StreamOptions
from scaleout.generate.remote.choices_reading import ChoicesReading
from scaleout.generate.remote.dialect import Exchange, Facts, Limits
from scaleout.result_wire import read_logprobs
from scaleout.wire import write_generate_request

NAME = "generate"
PATH = "/inference/v1/generate"
GATHERED = 32
"""Tokens per event where nobody reads along: enough to cost little, few enough to show that the engine lives."""


@define
class GenerateWire:
    name: str = NAME

    def write(self, request: GenerateRequest, facts: Facts, limits: Limits) -> Sequence[Exchange]:
        params = request.sampling_params
        # The peer's streams lack prompt logprobs and transfer parameters; its whole answers have them.
        whole = not facts.ours and (params.prompt_logprobs is not None or wants_transfer(request))
        # A running count says with the first token how much of the prompt was cached: an answer that is cut short never sees the last.
        running = facts.ours or params.prompt_logprobs is not None or wants_running_usage(request)
        if not request.stream and not whole and params.stream_interval is None:
            params = evolve(params, stream_interval=GATHERED)
        sent = evolve(
            request,
            model=facts.model,
            sampling_params=evolve(params, output_kind=2 if whole else 1),
            stream=not whole,
            stream_options=None if whole else StreamOptions(True, running),
            return_token_ids=None,
            output_mode="tokens",
            token_offsets=None,
            assistant_tokens_mask=None,
            spans=None,
            derender_state=None,
        )
        reading = ChoicesReading(params.n, frozenset() if params.ignore_eos else limits.eos_token_ids, read_logprobs)
        return [Exchange(PATH, dumps(write_generate_request(sent)), reading)]


def wants_transfer(request: GenerateRequest) -> bool:
    return request.kv_transfer_params is not None or request.ec_transfer_params is not None


def wants_running_usage(request: GenerateRequest) -> bool:
    return request.stream_options is not None and request.stream_options.continuous_usage_stats
