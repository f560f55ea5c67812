"""llama.cpp's `/completion` with ids for a prompt. Each choice is a request of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from attrs import define, evolve, field

from scaleout.codec import dumps
from scaleout.core import GenerateRequest, Json, PositionLogprobs, PromptInfo, TokenDelta, TokenLogprob
from scaleout.generate.remote.dialect import Exchange, Facts, Limits, demand_of, merge_top, read_ids, refuse
from scaleout.generate.remote.faults import Broken
from scaleout.generate.remote.split_characters import SplitCharacters

NAME = "llamacpp"
PATH = "/completion"

REFUSED = (
    *("bad_words", "allowed_token_ids", "thinking_token_budget", "repetition_detection", "logprob_token_ids"),
    *("min_tokens", "prompt_logprobs"),
)
REASONS = {"eos": "stop", "word": "stop", "limit": "length"}
UNKNOWN = -9999.0
"""Stands for the log probability of an id that was not told, as on the generate wire."""


@define
class LlamacppWire:
    name: str = NAME

    def write(self, request: GenerateRequest, facts: Facts, limits: Limits) -> Sequence[Exchange]:
        params = request.sampling_params
        refuse(request, "llama.cpp's /completion", *REFUSED)
        most = limits.room(request, facts)
        body: dict[str, Json] = {
            "prompt": request.token_ids,
            "n_predict": most,
            "stream": True,
            "return_tokens": True,
            "timings_per_token": True,
            "cache_prompt": not params.skip_reading_prefix_cache,
            "temperature": params.temperature,
            "top_k": max(params.top_k, 0),
            "top_p": params.top_p,
            "min_p": params.min_p,
            "typical_p": 1.0,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "repeat_penalty": params.repetition_penalty,
            "repeat_last_n": -1,
            "ignore_eos": params.ignore_eos,
            "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"],
            **self._demand(request),
        }
        if params.logit_bias:
            body["logit_bias"] = [[i, bias] for i, bias in params.logit_bias.items()]
        if params.logprobs is not None:
            body["n_probs"] = max(params.logprobs, 1)
        ends = frozenset() if params.ignore_eos else limits.eos_token_ids
        stops = frozenset(params.stop_token_ids) - ends
        exchanges = []
        for index in range(params.n):
            seeded = body if params.seed is None else {**body, "seed": (params.seed + index) % 2**32}
            reading = LlamacppReading(index, most, ends, stops, params.logprobs, limits.split)
            exchanges.append(Exchange(PATH, dumps(seeded), reading))
        return exchanges

    def _demand(self, request: GenerateRequest) -> dict[str, Json]:
        match demand_of(request, "llama.cpp's /completion", "json", "json_object", "choice"):
            case ("json", schema):
                return {"json_schema": json.loads(schema) if isinstance(schema, str) else schema}
            case ("json_object", _):
                return {"json_schema": {"type": "object"}}
            case ("choice", texts):
                return {"grammar": "root ::= " + " | ".join(json.dumps(text) for text in texts)}
            case _:
                return {}


@define
class LlamacppReading:
    """An event for each token, then one that says how it ended. Stop ids are watched here: the wire has none.

    Of a character that takes several tokens, the wire brings only the last id, with all of the text; the others are found by their bytes.
    """

    index: int
    most: int
    ends: frozenset[int]
    stops: frozenset[int]
    logprobs: int | None
    split: SplitCharacters | None
    over: bool = False
    _seen: int = 0
    _told: bool = False
    _held: list[TokenDelta] = field(factory=list)

    def take(self, event: Json) -> Sequence[TokenDelta]:
        try:
            if event["stop"]:
                return self._end(event)
            if "content" not in event:
                return ()
            return self._token(event, read_ids(event.get("tokens") or []))
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise Broken(f"the engine's event cannot be read: {error!r}") from None

    def _token(self, event: Json, ids: list[int]) -> Sequence[TokenDelta]:
        if not ids:
            if event["content"]:
                raise Broken("this version of llama.cpp streams no token ids")
            return ()
        timings = event.get("timings") or {}
        counted = timings.get("predicted_n")
        missing = self._missing(event["content"].encode(), ids, counted)
        logprobs = None
        if self.logprobs is not None:
            logprobs = [PositionLogprobs(TokenLogprob(one, UNKNOWN)) for one in missing]
            logprobs += [read_position(entry, self.logprobs) for entry in event["completion_probabilities"]]
        ids = missing + ids
        self._seen += len(ids)
        delta = TokenDelta(self.index, ids, logprobs, prompt=self._prompt(timings))
        if ids[-1] in self.stops:
            self.over = True
            return [evolve(delta, finish_reason="stop", stop_reason=ids[-1])]
        if ids[-1] in self.ends or self._seen >= self.most:
            # The event that says how it ended is right behind.
            self._held.append(delta)
            return ()
        return [delta]

    def _missing(self, text: bytes, ids: list[int], counted: int | None) -> list[int]:
        """Ids that the server made before the last and did not send."""
        count = None if counted is None else counted - self._seen - len(ids)
        if count == 0:
            return []
        own = (self.split.token_bytes(ids[-1]) or b"") if self.split is not None else b""
        rest = text.removesuffix(own)
        if not rest or (count is None and rest == text):
            return []
        found = None if self.split is None else self.split.spell(rest, count)
        if found is None:
            raise Broken("the engine kept ids of a split character to itself, and no ids spell its bytes")
        return found

    def _end(self, event: Json) -> Sequence[TokenDelta]:
        kind = event.get("stop_type")
        reason = REASONS.get(kind, "length" if event.get("truncated") else "stop")
        if self._held:
            return [evolve(self._held.pop(), finish_reason=reason)]
        logprobs: list[PositionLogprobs] | None = None if self.logprobs is None else []
        return [TokenDelta(self.index, [], logprobs, reason, prompt=self._prompt(event.get("timings") or {}))]

    def _prompt(self, timings: Mapping[str, Json]) -> PromptInfo | None:
        """How much of the prompt was cached, with the first event that says so."""
        cached = timings.get("cache_n")
        if cached is None or self._told:
            return None
        self._told = True
        return PromptInfo(cached_tokens=cached)

    def finish(self) -> Sequence[TokenDelta]:
        return ()


def read_position(entry: Mapping[str, Json], count: int) -> PositionLogprobs:
    best = [
        TokenLogprob(one["id"], one["logprob"], rank)
        for rank, one in enumerate(entry.get("top_logprobs") or (), start=1)
    ]
    rank = next((one.rank for one in best if one.token_id == entry["id"]), None)
    return merge_top(TokenLogprob(entry["id"], entry["logprob"], rank), best, count)
