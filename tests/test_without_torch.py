"""A render server starts and answers where torch cannot be imported, and never asks for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PROGRAM = """
import asyncio, json, sys

sys.modules["torch"] = None      # an import of it fails from here on
sys.modules["transformers"] = None

import aiohttp
from aiohttp import web
from scaleout.app import make_app
from scaleout.config import ModeConfig

async def main(model):
    config = ModeConfig.load(["launch", "render", model, "--served-model-name", "m", "--workers", "1"], {})
    runner = web.AppRunner(make_app(config))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/chat/completions"
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with aiohttp.ClientSession() as client:
        rendered = await (await client.post(base + "/render", json=chat)).json()
        ids = rendered["token_ids"]
        call = {"generate_response": {"choices": [{"token_ids": ids[:3]}]}, "chat_request": chat}
        answer = await (await client.post(base + "/derender", json=call)).json()
    await runner.cleanup()
    print(json.dumps([len(ids), answer["choices"][0]["finish_reason"], sys.modules["torch"] is None]))

asyncio.run(main(sys.argv[1]))
"""


def test_a_render_server_never_imports_torch(tiny_model: Callable[..., Path]) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tiny_model("qwen3"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == '[9, "stop", true]'
