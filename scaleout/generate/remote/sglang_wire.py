"""SGLang's `/generate` with `input_ids`. Each choice is a request of its own, as its documentation advises."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from attrs import define

from scaleout.codec import dumps
from scaleout.core import GenerateRequest, Json, PositionLogprobs, PromptInfo, TokenDelta, TokenLogprob
from scaleout.generate.remote.dialect import Exchange, Facts, Limits, demand_of, merge_top, read_ids, refuse
from scaleout.generate.remote.faults import Broken

NAME = "sglang"
PATH = "/generate"

REFUSED = ("bad_words", "allowed_token_ids", "thinking_token_budget", "repetition_detection", "logprob_token_ids")


@define
class SglangWire:
    name: str = NAME

    def write(self, request: GenerateRequest, facts: Facts, limits: Limits) -> Sequence[Exchange]:
        params = request.sampling_params
        refuse(request, "SGLang's /generate", *REFUSED)
        sampling: dict[str, Json] = {
            "max_new_tokens": limits.room(request, facts),
            "min_new_tokens": params.min_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "min_p": params.min_p,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "repetition_penalty": params.repetition_penalty,
            "stop_token_ids": list(params.stop_token_ids) or None,
            "ignore_eos": params.ignore_eos,
            "skip_special_tokens": False,
            "no_stop_trim": True,
            **self._demand(request),
        }
        if params.logit_bias:
            sampling["logit_bias"] = {str(i): bias for i, bias in params.logit_bias.items()}
        prompted = params.prompt_logprobs is not None
        wanted = max(params.logprobs or 0, params.prompt_logprobs or 0)
        hidden = frozenset() if params.ignore_eos else limits.eos_token_ids
        exchanges = []
        for index in range(params.n):
            seeded = sampling if params.seed is None else {**sampling, "sampling_seed": params.seed + index}
            body = {
                "rid": f"{request.request_id}-{index}",
                "input_ids": request.token_ids,
                "sampling_params": seeded,
                "stream": True,
                "return_logprob": params.logprobs is not None or prompted,
                "top_logprobs_num": wanted,
                "logprob_start_len": 0 if prompted else -1,
            }
            reading = SglangReading(index, hidden, params.logprobs, params.prompt_logprobs)
            exchanges.append(Exchange(PATH, dumps(body), reading))
        return exchanges

    def _demand(self, request: GenerateRequest) -> dict[str, Json]:
        demand = demand_of(request, "SGLang's /generate", "json", "json_object", "regex", "grammar", "structural_tag")
        match demand:
            case None:
                return {}
            case ("json", schema):
                return {"json_schema": schema if isinstance(schema, str) else json.dumps(schema)}
            case ("json_object", _):
                return {"json_schema": '{"type": "object"}'}
            case ("regex", pattern):
                return {"regex": pattern}
            case ("grammar", text):
                return {"ebnf": text}
            case (_, tag):
                return {"structural_tag": tag if isinstance(tag, str) else json.dumps(tag)}


@define
class SglangReading:
    """Events say either all ids so far or the new ones, as the server was started; the count of all tells which."""

    index: int
    hidden_stops: frozenset[int]
    logprobs: int | None
    prompt_logprobs: int | None
    over: bool = False
    _seen: int = 0
    _begun: bool = False

    def take(self, event: Json) -> Sequence[TokenDelta]:
        try:
            return self._take(event, event["meta_info"])
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise Broken(f"the engine's event cannot be read: {error!r}") from None

    def _take(self, event: Json, meta: Mapping[str, Json]) -> Sequence[TokenDelta]:
        if "output_ids" not in event:
            raise Broken("this version of SGLang sends no output_ids; start it with --skip-tokenizer-init")
        ids = read_ids(event["output_ids"])
        new = meta["completion_tokens"] - self._seen
        if new > len(ids):
            raise Broken(f"the engine has made {new} tokens and sent {len(ids)}")
        ids = ids[-new:] if new > 0 else []
        self._seen += len(ids)
        reason, stop = read_end(meta.get("finish_reason"))
        prompt = None
        if not self._begun:
            prompt = PromptInfo(cached_tokens=meta.get("cached_tokens"), logprobs=self._prompt_logprobs(meta))
            self._begun = True
        elif not ids and reason is None:
            return ()
        logprobs = None if self.logprobs is None else read_positions(meta, len(ids), self.logprobs)
        return [TokenDelta(self.index, ids, logprobs, reason, None if stop in self.hidden_stops else stop, prompt)]

    def _prompt_logprobs(self, meta: Mapping[str, Json]) -> list[dict[int, TokenLogprob] | None] | None:
        if self.prompt_logprobs is None:
            return None
        tops = meta.get("input_top_logprobs") or []
        positions: list[dict[int, TokenLogprob] | None] = []
        for place, entry in enumerate(meta["input_token_logprobs"]):
            if entry[0] is None:
                positions.append(None)
                continue
            best = read_best(tops[place] if place < len(tops) else None)[: self.prompt_logprobs]
            position = merge_top(find_rank(entry, best), best, self.prompt_logprobs + 1)
            positions.append({one.token_id: one for one in position.top})
        return positions

    def finish(self) -> Sequence[TokenDelta]:
        return ()


def read_end(reason: Json) -> tuple[str | None, int | str | None]:
    """`{"type": "stop", "matched": id or text}`, `{"type": "length"}`, `{"type": "abort"}`, or null."""
    if reason is None:
        return None, None
    if isinstance(reason, str):
        return reason, None
    if reason["type"] == "abort" and reason.get("status_code") not in (None, 200):
        raise Broken(f"the engine gave the request up: {reason.get('message')}")
    return reason["type"], reason.get("matched")


def read_positions(meta: Mapping[str, Json], new: int, count: int) -> list[PositionLogprobs]:
    """The last `new` entries: lists hold all positions so far, or the new ones."""
    if not new:
        return []
    sampled = meta["output_token_logprobs"][-new:]
    tops = (meta.get("output_top_logprobs") or [])[-new:] or [None] * new
    positions = []
    for entry, top in zip(sampled, tops, strict=True):
        best = read_best(top)
        positions.append(merge_top(find_rank(entry, best), best, count))
    return positions


def read_best(top: Json) -> list[TokenLogprob]:
    """`[[logprob, id, text], …]`, best first."""
    return [TokenLogprob(entry[1], entry[0], rank) for rank, entry in enumerate(top or (), start=1)]


def find_rank(entry: Sequence[Json], best: Sequence[TokenLogprob]) -> TokenLogprob:
    found = next((one.rank for one in best if one.token_id == entry[1]), None)
    return TokenLogprob(entry[1], entry[0], found)
