"""A client of the split deployment: render → generate → derender by plain HTTP, as users write it."""

from __future__ import annotations

import json
from typing import Any

from serving import Answer, Server

Json = dict[str, Any]
CONTEXT = {"/v1/chat/completions": "chat_request", "/v1/completions": "completion_request"}


def events(answer: Answer) -> list[Json]:
    """The JSON events of a stream, without the last `[DONE]`."""
    assert answer.status == 200, answer.body
    lines = [line.removeprefix("data: ") for line in answer.body.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def ok(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json


def ask_split(front: Server, engine: Server, path: str, body: Json, request_id: str) -> Any:
    """The answer to `body`: one object, or the list of chunks when it asks for a stream."""
    headers = {"X-Request-Id": request_id}
    rendered = ok(front.post(f"{path}/render", body, headers))
    if body.get("stream"):
        return stream_split(front, engine, path, body, rendered)
    context = {CONTEXT[path]: body, "model": body.get("model")}
    if path == "/v1/chat/completions":
        generated = ok(engine.post("/inference/v1/generate", rendered))
        ids = rendered["token_ids"]
        return ok(
            front.post(
                f"{path}/derender",
                {**context, "generate_response": generated, "prompt_tokens": len(ids), "prompt_token_ids": ids},
            )
        )
    return ok(
        front.post(
            f"{path}/derender",
            {
                **context,
                "generate_responses": [ok(engine.post("/inference/v1/generate", one)) for one in rendered],
                "prompt_tokens": [len(one["token_ids"]) for one in rendered],
                "prompt_token_ids": [one["token_ids"] for one in rendered],
            },
        )
    )


def stream_split(front: Server, engine: Server, path: str, body: Json, rendered: Any) -> list[Json]:
    """One prompt's stream, each engine event derendered by a call of its own; one state for each choice."""
    (wanted,) = rendered if isinstance(rendered, list) else [rendered]
    states: dict[int, Any] = {}
    chunks = []
    for event in events(engine.post("/inference/v1/generate", wanted)):
        index = event["choices"][0]["index"] if event["choices"] else 0
        call: Json = {"stream": True, "generate_chunk": event, "stream_state": states.get(index)}
        if index not in states:
            call |= {"model": body.get("model"), CONTEXT[path]: body, "prompt_token_ids": wanted["token_ids"]}
            call["prompt_tokens"] = len(wanted["token_ids"])
        answer = ok(front.post(f"{path}/derender", call))
        states[index] = answer["stream_state"]
        chunks.append(answer["chunk"])
    return chunks
