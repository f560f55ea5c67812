"""`/v1/completions` with ids for a prompt and `return_token_ids`: for servers of the OpenAI API that have no generate route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from attrs import define

from scaleout.codec import dumps
from scaleout.core import GenerateRequest, Json, PositionLogprobs, TokenLogprob
from scaleout.generate.remote.choices_reading import ChoicesReading
from scaleout.generate.remote.dialect import Exchange, Facts, Limits, merge_top, refuse
from scaleout.generate.remote.faults import Broken

NAME = "completions"
PATH = "/v1/completions"
ID_PREFIX = "token_id:"

ALIKE = (
    *("n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "ignore_eos", "min_tokens", "logprobs", "prompt_logprobs", "allowed_token_ids", "thinking_token_budget"),
    *("repetition_detection", "logprob_token_ids"),
)
"""Sampling parameters that have the same name and meaning in the request body."""


@define
class CompletionsWire:
    name: str = NAME

    def write(self, request: GenerateRequest, facts: Facts, limits: Limits) -> Sequence[Exchange]:
        params = request.sampling_params
        refuse(request, "/v1/completions")
        # No stream of this route carries prompt logprobs.
        whole = params.prompt_logprobs is not None
        body: dict[str, Json] = {
            "model": facts.model,
            "prompt": request.token_ids,
            "max_tokens": limits.room(request, facts),
            "stream": not whole,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
            **{name: value for name in ALIKE if (value := getattr(params, name)) is not None},
        }
        if not whole:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": facts.ours}
        further = {
            "stop_token_ids": params.stop_token_ids,
            "bad_words": params.bad_words,
            "logit_bias": {str(i): bias for i, bias in (params.logit_bias or {}).items()},
            "structured_outputs": plain_demand(params.structured_outputs),
            "vllm_xargs": params.extra_args,
            "cache_salt": request.cache_salt,
            "priority": request.priority,
            "kv_transfer_params": request.kv_transfer_params,
            "request_id": request.request_id,
        }
        body.update((name, value) for name, value in further.items() if value)
        hidden = frozenset() if params.ignore_eos else limits.eos_token_ids
        return [
            Exchange(PATH, dumps(body), ChoicesReading(params.n, hidden, partial(read_positions, params.logprobs or 0)))
        ]


def plain_demand(demand: Mapping[str, Json] | None) -> Json:
    """Structured output without the engine's own notes about it."""
    if demand is None:
        return None
    return {name: value for name, value in demand.items() if value is not None and not name.startswith("_")}


def read_positions(count: int, logprobs: Json) -> list[PositionLogprobs]:
    """The completions API's parallel lists, tokens written as `token_id:N`. Ranks are not told."""
    tops = logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"])
    positions = []
    for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True):
        best = [TokenLogprob(read_token(name), value) for name, value in (top or {}).items()]
        positions.append(merge_top(TokenLogprob(read_token(token), logprob), best, count))
    return positions


def read_token(name: str) -> int:
    if not name.startswith(ID_PREFIX):
        raise Broken("the engine names tokens by their text: it does not know return_tokens_as_token_ids")
    return int(name.removeprefix(ID_PREFIX))
