"""What loading a tokenizer costs a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from scaleout.tokenizer import load_model_files, load_tokenizer, open_window, decode_next
tokenizer = load_tokenizer(load_model_files(sys.argv[1]))
ids = tokenizer.encode("Hello, world!", add_special_tokens=False)
decode_next(tokenizer, open_window(tokenizer, []), ids)
peak = next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM:"))
heavy = {"torch", "transformers", "numpy", "gguf", "huggingface_hub", "jinja2", "aiohttp", "cattrs"} & set(sys.modules)
print(json.dumps([ids, peak, sorted(heavy)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_light_in_modules_and_memory(tiny_model: Callable[..., Path]) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tiny_model("qwen3"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    ids, peak_mb, heavy = json.loads(done.stdout)
    assert ids == [9707, 11, 1879, 0]
    assert heavy == []
    assert peak_mb < 200  # a render process has 300 for everything
