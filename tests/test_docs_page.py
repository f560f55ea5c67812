"""The page about the API in a real browser: it lists the routes, sends requests, and asks nobody else for anything."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Server, serving

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig

api = pytest.importorskip("playwright.sync_api", reason="the test drives a browser with playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")


@pytest.fixture(scope="module")
def server(tiny_model: Callable[..., Path]) -> Iterator[Server]:
    config = ModeConfig(
        Mode.STANDARD,
        model=str(tiny_model("llama2")),
        served_model_names=("tiny",),
        chat_template="{{ messages[0].content }}",
        root_path="/api",
        access_log=False,
        engine=EngineOptions(backend="echo"),
    )
    with serving(make_app(config)) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.mark.parametrize("path", ["/docs", "/docs/", "/api/docs"])
def test_the_page_tells_and_tries_the_routes(server: Server, browser: Any, path: str) -> None:
    page = browser.new_page()
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    home = f"http://127.0.0.1:{server.port}"
    page.goto(home + path)
    page.wait_for_selector("#get_health")
    routes = {text.strip() for text in page.locator("summary code").all_inner_texts()}
    assert {"/v1/chat/completions", "/v1/messages/count_tokens", "/v1/responses/{response_id}"} <= routes

    chat = page.locator("#post_v1_chat_completions")
    chat.locator("summary").click()
    assert "messages *" in chat.locator("table").inner_text()
    chat.locator("button").click()
    api.expect(chat.locator("pre")).to_contain_text("[DONE]")
    assert "→ 200" in chat.locator("pre").inner_text()
    assert "chat.completion.chunk" in chat.locator("pre").inner_text()

    one = page.locator("#get_v1_responses_response_id")
    one.locator("summary").click()
    one.get_by_placeholder("response_id").fill("resp_none")
    one.get_by_placeholder("stream").fill("true")
    one.locator("button").click()
    api.expect(one.locator("pre")).to_contain_text("not found")
    assert asked[-1] == f"{page.url.removesuffix('/').removesuffix('/docs')}/v1/responses/resp_none?stream=true"

    assert {url.startswith(home) for url in asked} == {True}
    # The 404 that was asked for is the one thing that the browser itself reports.
    assert [fault for fault in faults if "404" not in fault] == []
    page.close()
