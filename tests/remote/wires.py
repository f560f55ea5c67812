"""Servers that speak the wires of SGLang and of llama.cpp as these are documented, over any engine of ours."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aiohttp import web
from attrs import define, field

from scaleout.core import GenerateRequest, PositionLogprobs, SamplingParams, TokenDelta
from scaleout.generate.engine import Engine
from scaleout.tokenizer import ModelFiles, Tokenizer

Json = dict[str, Any]


@define(eq=False)
class WireServer:
    """What both have in common. `bodies`: what was asked, for tests to look at."""

    engine: Engine
    files: ModelFiles
    tokenizer: Tokenizer
    model: str = "m"
    bodies: list[Json] = field(factory=list)

    def deltas(self, body: Json, ids: Sequence[int], params: SamplingParams) -> AsyncIterator[TokenDelta]:
        self.bodies.append(body)
        return self.engine.generate(GenerateRequest("wire", ids, sampling_params=params, stream=True))

    async def stream(self, request: web.Request, events: AsyncIterator[Json], done: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for event in events:
            await response.write(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")
        if done:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


class SglangServer(WireServer):
    """`cumulative`: events hold all ids so far, as without --incremental-streaming-output."""

    cumulative = True

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26, handler_args={"handler_cancellation": True})
        app.router.add_get("/health", self.health)
        app.router.add_get("/get_model_info", self.model_info)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/generate", self.generate)
        return app

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"model_path": self.model, "tokenizer_path": self.model, "is_generation": True})

    async def models(self, _: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "root": self.model, "max_model_len": self.files.max_model_len}
        return web.json_response({"object": "list", "data": [card]})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        given = body["sampling_params"]
        if len(body["input_ids"]) >= self.files.max_model_len:
            message = f"The input ({len(body['input_ids'])} tokens) is longer than the model's context length."
            return web.json_response({"error": {"message": message}}, status=400)
        params = SamplingParams(
            max_tokens=given["max_new_tokens"],
            min_tokens=given["min_new_tokens"],
            temperature=given["temperature"],
            top_p=given["top_p"],
            top_k=max(given["top_k"], 0),
            seed=given.get("sampling_seed"),
            stop_token_ids=given["stop_token_ids"] or (),
            ignore_eos=given["ignore_eos"],
            logprobs=body["top_logprobs_num"] if body["return_logprob"] else None,
            prompt_logprobs=body["top_logprobs_num"] if body["logprob_start_len"] == 0 else None,
            structured_outputs={"json": given["json_schema"]} if "json_schema" in given else None,
        )
        return await self.stream(request, self.events(body, params), done=True)

    async def events(self, body: Json, params: SamplingParams) -> AsyncIterator[Json]:
        ids: list[int] = []
        logprobs: list[PositionLogprobs] = []
        meta: Json = {"id": body["rid"], "prompt_tokens": len(body["input_ids"]), "weight_version": "default"}
        async for delta in self.deltas(body, body["input_ids"], params):
            ids += delta.token_ids
            logprobs += delta.logprobs or ()
            if delta.prompt is not None:
                meta["cached_tokens"] = delta.prompt.cached_tokens
                if delta.prompt.logprobs is not None:
                    meta |= self.prompt_logprobs(body["input_ids"], delta.prompt.logprobs)
            shown = ids if self.cumulative else list(delta.token_ids)
            meta |= {"completion_tokens": len(ids), "finish_reason": self.finish_reason(delta, ids)}
            if body["return_logprob"]:
                told = logprobs if self.cumulative else delta.logprobs or []
                meta["output_token_logprobs"] = [[p.sampled.logprob, p.sampled.token_id, None] for p in told]
                meta["output_top_logprobs"] = [
                    [[t.logprob, t.token_id, None] for t in sorted(p.top, key=lambda t: t.rank or 0)] for p in told
                ]
            yield {"text": "", "output_ids": shown, "meta_info": meta}

    @staticmethod
    def prompt_logprobs(ids: Sequence[int], positions: Any) -> Json:
        tokens, tops = [], []
        for token, position in zip(ids, positions, strict=True):
            tokens.append([None if position is None else position[token].logprob, token, None])
            ranked = sorted((position or {}).values(), key=lambda one: one.rank or 0)
            tops.append(None if position is None else [[one.logprob, one.token_id, None] for one in ranked])
        return {"input_token_logprobs": tokens, "input_top_logprobs": tops}

    def finish_reason(self, delta: TokenDelta, ids: Sequence[int]) -> Json | None:
        if delta.finish_reason is None:
            return None
        if delta.finish_reason == "length":
            return {"type": "length", "length": len(ids)}
        return {"type": delta.finish_reason, "matched": ids[-1]}


class IncrementalSglangServer(SglangServer):
    cumulative = False


class LlamacppServer(WireServer):
    """Sends an event for each token that ends on a whole character; the ids of others it keeps to itself, as the original does."""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26, handler_args={"handler_cancellation": True})
        app.router.add_get("/health", self.health)
        app.router.add_get("/props", self.props)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/completion", self.completion)
        return app

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def props(self, _: web.Request) -> web.Response:
        settings = {"n_ctx": self.files.max_model_len}
        return web.json_response({"default_generation_settings": settings, "total_slots": 4, "model_path": "m.gguf"})

    async def models(self, _: web.Request) -> web.Response:
        meta = {"n_vocab": self.files.vocab_size, "n_ctx_train": self.files.max_model_len}
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model", "meta": meta}]})

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"tokens": self.tokenizer.encode(body["content"], body["add_special"])})

    async def completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        params = SamplingParams(
            max_tokens=body["n_predict"],
            temperature=body["temperature"],
            top_p=body["top_p"],
            top_k=body["top_k"],
            seed=body.get("seed"),
            ignore_eos=body["ignore_eos"],
            logprobs=body.get("n_probs"),
        )
        return await self.stream(request, self.events(body, params), done=False)

    async def events(self, body: Json, params: SamplingParams) -> AsyncIterator[Json]:
        said = b""
        sent = count = 0
        async for delta in self.deltas(body, body["prompt"], params):
            for place, token in enumerate(delta.token_ids):
                count += 1
                special = token in self.tokenizer.special_ids
                said += b"" if special else self.tokenizer.token_bytes(token) or b""
                if is_whole(said):
                    yield self.partial(said[sent:].decode(errors="replace"), token, count, delta, place, body)
                    sent = len(said)
            if delta.finish_reason is not None:
                kind = "limit" if delta.finish_reason == "length" else "eos"
                timings = {"predicted_n": count, "cache_n": 0, "prompt_n": len(body["prompt"])}
                last = {"index": 0, "content": "", "tokens": [], "id_slot": 0, "stop": True, "model": self.model}
                ends = {"tokens_predicted": count, "tokens_evaluated": len(body["prompt"]), "truncated": False}
                yield {**last, **ends, "stop_type": kind, "stopping_word": "", "timings": timings}

    def partial(
        self, text: str, token: int, count: int, delta: TokenDelta, place: int, body: Mapping[str, Any]
    ) -> Json:
        event: Json = {"index": 0, "content": text, "tokens": [token], "stop": False, "id_slot": 0}
        event |= {"tokens_predicted": count, "tokens_evaluated": len(body["prompt"])}
        if body["timings_per_token"]:
            event["timings"] = {"predicted_n": count, "cache_n": 0}
        if delta.logprobs is not None:
            ranked = sorted(delta.logprobs[place].top, key=lambda one: one.rank or 0)
            top = [{"id": one.token_id, "token": "", "bytes": [], "logprob": one.logprob} for one in ranked]
            own = delta.logprobs[place].sampled
            entry = {"id": own.token_id, "token": "", "bytes": [], "logprob": own.logprob, "top_logprobs": top}
            event["completion_probabilities"] = [entry]
        return event


def is_whole(data: bytes) -> bool:
    """Whether no character at the end of `data` has only begun."""
    for length in (1, 2, 3):
        if length <= len(data) and data[-length] >= 0xC0:
            need = 2 if data[-length] < 0xE0 else 3 if data[-length] < 0xF0 else 4
            return length >= need
    return True
