"""What engines get wrong reaches the client as one clear error, at once or in the stream; nothing hangs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from attrs import define
from driving import config_of, remote
from odd_engines import Answer, breaks_off, falls_silent, never_answers, odd_engine, refuses, says, token
from serving import Server, serving, until
from wishes import CHAT

from scaleout.app import make_app
from scaleout.config import Mode
from scaleout.routes.keys import STAGES

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
GOOD = says(token([504], 1), token([504, 505], 2, {"type": "length", "length": 2}))
FULL = refuses(503, {"error": {"message": "The queue is full"}}, Retry_After="7")


@define
class Changing:
    """An odd engine whose oddness is changed from test to test: starting a front end for each takes longer than all else."""

    answer: Answer

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await self.answer(request, body)


@pytest.fixture(scope="module")
def behind(smollm2_folder: Path) -> Iterator[Callable[..., Server]]:
    """`behind(*answers)`: a front end over one odd engine for each of `answers`, none of which has failed before."""
    with ExitStack() as running:
        known: dict[tuple[int, float], tuple[Server, list[Changing]]] = {}

        def run(*answers: Answer) -> Server:
            silence = 0.5 if any(answer in (never_answers, falls_silent) for answer in answers) else 30
            key = len(answers), silence
            if key not in known:
                engines = [Changing(GOOD) for _ in answers]
                urls = [running.enter_context(serving(odd_engine(engine))) for engine in engines]
                config = config_of(Mode.RENDER_ONLY, smollm2_folder, engine=remote(*urls, silence=silence))
                known[key] = running.enter_context(serving(make_app(config))), engines
            front, engines = known[key]
            for engine in engines:
                engine.answer = GOOD
            for member in front.app[STAGES].remote_engine().fleet.members:
                member.broken = member.ejections = 0
                member.busy_until = member.not_before = 0.0
            front.within(lambda: until(lambda: front.app[STAGES].remote_engine().fleet.health() is None))
            for engine, answer in zip(engines, answers, strict=True):
                engine.answer = answer
            return front

        yield run


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (never_answers, 500, "sent nothing for 0.5 seconds"),
        (FULL, 503, "All engines are full"),
        (refuses(429, {"error": "slow down"}), 503, "All engines are full"),
        (refuses(400, {"error": {"message": "too long", "param": "input_ids"}}), 400, "too long"),
        (refuses(500, {"error": {"message": "boom"}}), 500, "the engine answered 500: boom"),
        (refuses(401, {"error": {"message": "who are you"}}), 500, "refuses the key"),
        (refuses(200, ["no answer"]), 500, "cannot be read"),
        (says("{"), 500, "not JSON"),
        (says('{"error": {"message": "no such parameter"}}'), 400, "no such parameter"),
        (says('{"error": {"message": "out of memory", "code": 500}}'), 500, "out of memory"),
        (says(), 500, "ended before the answer did"),
        (says(json.dumps({"text": "Hi", "meta_info": {"completion_tokens": 1}})), 500, "sends no output_ids"),
        (says(token([1, 2], 5)), 500, "made 5 tokens and sent 2"),
        (says(token(["x"], 1)), 500, "no token ids"),  # type: ignore[list-item]
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_before_the_first_token_it_is_an_ordinary_error(
    behind: Callable[..., Server], answer: Answer, status: int, said: str, stream: bool
) -> None:
    front = behind(answer)
    began = time.monotonic()
    refused = front.post(CHAT, {**BODY, "stream": stream})
    assert time.monotonic() - began < 20
    assert refused.status == status
    assert said in refused.error["message"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (falls_silent, "sent nothing for 0.5 seconds"),
        (breaks_off, "the connection broke"),
        (says(token([504], 1)), "ended before the answer did"),
        (says(token([504], 1), '{"error": {"message": "out of memory", "code": 500}}'), "out of memory"),
        (says(token([504], 1), '{"error": {"message": "no such thing"}}'), "no such thing"),
        (says(token([504], 1), "nonsense"), "not JSON"),
    ],
)
def test_behind_the_first_token_it_is_an_error_event(behind: Callable[..., Server], answer: Answer, said: str) -> None:
    answered = behind(answer).post(CHAT, {**BODY, "stream": True})
    assert answered.status == 200
    *events, done = [line.removeprefix("data: ") for line in answered.body.decode().split("\n\n") if line]
    assert done == "[DONE]"
    assert json.loads(events[0])["choices"][0]["delta"]["content"]
    error = json.loads(events[-1])["error"]
    assert error["code"] == 500
    assert "in the middle of the answer" in error["message"]
    assert said in error["message"]


def test_a_full_engine_s_patience_is_passed_on(behind: Callable[..., Server]) -> None:
    assert behind(FULL).post(CHAT, BODY).headers["Retry-After"] == "7"


@pytest.mark.parametrize("bad", [FULL, refuses(500, {}), never_answers, says(), refuses(501, {})])
def test_another_engine_answers_what_one_could_not(behind: Callable[..., Server], bad: Answer) -> None:
    front = behind(bad, GOOD)
    for _ in range(4):
        assert front.post(CHAT, {**BODY, "stream": True}).body.endswith(b"data: [DONE]\n\n")
        assert front.post(CHAT, BODY).json["choices"][0]["finish_reason"] == "length"


def test_a_request_that_breaks_engines_does_not_go_through_all_of_them(behind: Callable[..., Server]) -> None:
    front = behind(*[breaks_before_the_answer] * 4)
    assert front.post(CHAT, BODY).status == 500
    lines = front.get("/metrics").body.decode().splitlines()
    failed = [line for line in lines if line.startswith("scaleout_remote_engine_requests_total") and "failed" in line]
    assert len(failed) == 2


async def breaks_before_the_answer(request: Any, _: dict[str, Any]) -> Any:
    request.transport.abort()


def test_an_engine_that_always_fails_is_put_out_although_it_calls_itself_healthy(behind: Callable[..., Server]) -> None:
    front = behind(refuses(500, {"error": {"message": "boom"}}))
    for _ in range(3):
        assert front.post(CHAT, BODY).status == 500
    (engine,) = front.get("/engines").json["engines"]
    assert engine["state"] == "down"
    assert "3 requests in a row failed" in engine["reason"]
    assert "boom" in engine["reason"]
    assert front.post(CHAT, BODY).status == 503
