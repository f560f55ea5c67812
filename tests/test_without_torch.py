"""A render server starts and answers where torch cannot be imported, and never asks for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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


PICTURE = """
import asyncio, base64, io, json, sys
from pathlib import Path

sys.path.insert(0, "tests")
from scaleout.pipeline.media import keep_torch_out
keep_torch_out()

import aiohttp
from aiohttp import web
from media_files import data_url, picture
from scaleout.app import make_app
from scaleout.config import ModeConfig
from tests.render.mm_models import FAMILIES, build

async def main(base, out):
    model = str(build(FAMILIES["qwen2_vl"], Path(base), Path(out)))
    config = ModeConfig.load(["launch", "render", model, "--served-model-name", "m", "--workers", "1"], {})
    runner = web.AppRunner(make_app(config))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/chat/completions/render"
    part = {"type": "image_url", "image_url": {"url": data_url(picture(56, 56))}}
    async with aiohttp.ClientSession() as client:
        rendered = await (await client.post(url, json={"messages": [{"role": "user", "content": [part]}]})).json()
    await runner.cleanup()
    print(json.dumps([rendered["features"]["mm_placeholders"]["image"][0]["length"], sys.modules["torch"] is None]))

asyncio.run(main(*sys.argv[1:]))
"""


def test_pictures_need_no_torch_either(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    for needed in ("transformers", "PIL", "blake3", "msgspec"):
        pytest.importorskip(needed)
    command = [sys.executable, "-c", PICTURE, str(tiny_model("qwen3")), str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[4, true]"


def test_a_render_server_never_imports_torch(tiny_model: Callable[..., Path]) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tiny_model("qwen3"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == '[9, "stop", true]'
