"""`python -m bench.images`: renders of a 720p JPEG for a model of Qwen2-VL's kind, bytes of each payload, and memory.

One server process on one core; the load is one client that waits for each answer. `--peer URL` measures a render server that runs already,
with the same model folder (`--keep FOLDER` leaves it behind).
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from attrs import evolve

from bench.models import find_model
from bench.servers import choose_cores

REPOSITORY = Path(__file__).resolve().parent.parent
RENDER = "/v1/chat/completions/render"
PATCH, MERGE = 14, 2
MOST = 28 * 28 * 1280


def make_jpeg(seed: int = 0) -> bytes:
    """1280 x 720, about as hard to compress as a photograph."""
    import numpy as np
    from PIL import Image

    y, x = np.mgrid[0:720, 0:1280]
    waves = np.stack([np.sin((x + seed * 31) / 17), np.cos(y / 11), np.sin((x + y) / 23)], -1) * 90 + 128
    grain = np.random.default_rng(seed).normal(0, 6, (720, 1280, 3))
    buffer = io.BytesIO()
    Image.fromarray((waves + grain).clip(0, 255).astype("uint8")).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def make_model(folder: Path) -> Path:
    """The real vocabulary and processor settings of Qwen2-VL, without weights."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.render.mm_models import FAMILIES, build

    family = FAMILIES["qwen2_vl"]
    image = {name: value for name, value in (family.image or {}).items() if not name.endswith("_pixels")}
    image["size"] = {"shortest_edge": 3136, "longest_edge": MOST}
    config = {**family.config, "architectures": ["Qwen2VLForConditionalGeneration"], "torch_dtype": "float32"}
    return build(evolve(family, image=image, config=config), Path(find_model("qwen3").path), folder)


def ask(base: str, jpeg: bytes, **more: Any) -> bytes:
    url = f"data:image/jpeg;base64,{b64encode(jpeg).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 16, **more}
    request = urllib.request.Request(base + RENDER, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return bytes(response.read())


def measure(base: str, pid: int | None, rounds: int) -> None:
    """Print the figures of one server."""
    process = psutil.Process(pid) if pid else None
    ask(base, make_jpeg(1000))
    for name, seeds, more in (
        ("pictures never seen", range(rounds), {}),
        ("the same picture", [0] * rounds, {}),
        ("the same, as its file", [0] * rounds, {"mm_payload": "source"}),
        ("the same, hashes alone", [0] * rounds, {"mm_payload": "none"}),
    ):
        files = [make_jpeg(seed) for seed in seeds]
        times, busy, size = [], _busy(process), 0
        for jpeg in files:
            began = time.perf_counter()
            try:
                size = len(ask(base, jpeg, **more))
            except urllib.error.HTTPError as error:
                print(f"  {name:24} {error.code}")
                break
            times.append(time.perf_counter() - began)
        else:
            spent = (_busy(process) - busy) / rounds
            print(
                f"  {name:24} {1 / median(times):7.1f}/s  {median(times) * 1000:7.1f} ms  processor {spent * 1000:6.1f} ms  "
                f"answer {size:>9} bytes = {size / len(files[-1]):5.2f} x the file"
            )
    if process is not None:
        print(f"  memory: {process.memory_info().rss / 1e6:.0f} MB now, {_peak(process) / 1e6:.0f} MB at most")


def _busy(process: psutil.Process | None) -> float:
    return 0.0 if process is None else sum(process.cpu_times()[:2])


def _peak(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peer", help="URL of another render server")
    parser.add_argument("--peer-pid", type=int)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args(argv)
    cores = choose_cores(pinned=True)
    cores.pin(cores.load)
    with tempfile.TemporaryDirectory(prefix="scaleout-bench-") as temporary:
        folder = options.keep or Path(temporary) / "model"
        model = make_model(folder)
        port = 9471
        command = [sys.executable, "-m", "scaleout", "launch", "render", str(model), "--served-model-name", "m"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--no-access-log"]
        began = time.perf_counter()
        with cores.for_server():
            server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        base = f"http://127.0.0.1:{port}"
        try:
            _wait(base)
            print(f"ours, ready after {time.perf_counter() - began:.1f} s")
            measure(base, server.pid, options.rounds)
        finally:
            server.terminate()
            server.wait()
        if options.peer:
            print("peer")
            measure(options.peer, options.peer_pid, options.rounds)


def _wait(base: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(base + "/ready", timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the server does not get ready")


if __name__ == "__main__":
    main(sys.argv[1:])
