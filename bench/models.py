"""The models that are served: in the cache already, or fetched into it once by the recipes in `../shared`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = REPOSITORY.parent / "shared"
CACHE = Path(os.environ.get("SCALEOUT_TEST_CACHE") or REPOSITORY / ".cache")
FETCH_SECONDS = 600.0


class Unavailable(Exception):
    """Something that a measurement needs is not there; the text says how to get it."""


@frozen
class Model:
    """A model as servers take it. `context`: tokens, 0 where only the server knows. `parsers`: flags that both sides get."""

    name: str
    path: str
    context: int = 0
    parsers: Sequence[str] = ()


RECIPES = {
    # The folder in the cache, the recipe's arguments, the parsers.
    "qwen3": (
        "qwen3-tiny",
        ("qwen3",),
        ("--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ),
    "smollm2": ("SmolLM2-135M-Instruct", ("smollm2", "--hf"), ()),
}
"""Qwen3's tokenizer under two random layers, and a small model of another tokenizer."""


DEMO = "demo"
FETCH_DEMO = "from scaleout.demo_model import fetch_model; print(fetch_model())"


def find_model(name: str) -> Model:
    """A name of RECIPES, `demo`, or whatever `scaleout launch render` takes. Raises `Unavailable`."""
    if name == DEMO:
        demo = _run([sys.executable, "-c", FETCH_DEMO], name).splitlines()[-1]
        return Model(DEMO, demo, _read_context(Path(demo)))
    if name not in RECIPES:
        return Model(Path(name).name, name, _read_context(Path(name)))
    folder, arguments, parsers = RECIPES[name]
    path = CACHE / "models" / folder
    if not (path / "config.json").exists():
        _fetch(arguments)
    return Model(name, str(path), _read_context(path), parsers)


def _fetch(arguments: Sequence[str]) -> None:
    recipe = SHARED / "models" / "fetch.py"
    if not recipe.exists():
        raise Unavailable(
            f"neither the cache ({CACHE}) nor the recipes ({SHARED}) hold it; --model PATH takes any other"
        )
    _run([sys.executable, str(recipe), str(CACHE / "models"), *arguments], arguments[0])


def _run(command: Sequence[str], name: str) -> str:
    print(f"fetching {name}, unless it is there already", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"fetching took over {FETCH_SECONDS:g} s") from None
    if done.returncode:
        raise Unavailable(f"fetching failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return done.stdout


def _read_context(folder: Path) -> int:
    try:
        return int(json.loads((folder / "config.json").read_text()).get("max_position_embeddings", 0))
    except (OSError, ValueError):
        return 0
