"""Real models and tokenizers for every test, fetched once into a cache folder and shared by all runs.

The cache is `.cache/` in the repository, or `SCALEOUT_TEST_CACHE`. The recipes that fill it lie in `../shared`; where that folder is
absent and the cache does not hold the model, the tests that need it are skipped and say so.
"""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Small models on shared cores: threads that wait for each other at every layer cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from aiohttp import web_app
from hypothesis import settings

from scaleout.pipeline.stages import CHECKS
from scaleout.tokenizer.memory import give_back_freed_memory

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = REPOSITORY.parent / "shared"
CACHE = Path(os.environ.get("SCALEOUT_TEST_CACHE") or REPOSITORY / ".cache")

TINY_MODELS = ("qwen3", "llama3_1", "llama2", "deepseek_v3", "gemma3", "gptoss")
"""Names that `tiny_model` knows: real tokenizers under two random layers."""

settings.register_profile("default", deadline=None, max_examples=60)
settings.register_profile("quick", deadline=None, max_examples=8)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@contextmanager
def _cache_lock() -> Iterator[None]:
    """Let one test run at a time write to the cache; the others wait and then find the files there."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _shared_or_skip() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared with the recipes for test models is absent")
    return SHARED


def _run_recipe(*args: str | Path) -> None:
    """Run one of the recipes with the interpreter that runs the tests; a failure (no network, no npm) skips the test."""
    done = subprocess.run([sys.executable, *map(str, args)], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        pytest.skip(f"fetching a test model failed: {reason[0]}")


def _can_write_weights() -> bool:
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers", "gguf", "accelerate"))


def fetch(wanted: Path, name: str, *, weights: bool) -> Path:
    """Make sure that the file `wanted` of the model `name` is in the cache. Returns its folder."""
    if not wanted.exists():
        shared = _shared_or_skip()
        if weights and not _can_write_weights():
            pytest.skip(f"writing {wanted.parent.name} needs torch, transformers, gguf and accelerate")
        with _cache_lock():
            if not wanted.exists():
                _run_recipe(shared / "models" / "fetch.py", CACHE / "models", name, *(["--hf"] if weights else []))
    return wanted.parent


@pytest.fixture(scope="module", autouse=True)
def let_go() -> Iterator[None]:
    """A server keeps what it has loaded out of the garbage collector's sight; tests start hundreds, and want each gone at its end."""
    yield
    for thread in threading.enumerate():
        # The interpreter must not end while one of them is within a library.
        if thread.name in CHECKS:
            thread.join()
    # aiohttp remembers the middlewares of the last 1,024 handlers, and with them each handler's server and its tokenizer.
    web_app._cached_build_middleware.cache_clear()
    gc.unfreeze()
    gc.collect()
    give_back_freed_memory()


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder `../shared` with recorded answers and cases, or a skip."""
    return _shared_or_skip()


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as one GGUF file."""
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    return fetch(CACHE / "models" / "smollm2" / name, "smollm2", weights=False) / name


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder with weights."""
    return fetch(CACHE / "models" / "SmolLM2-135M-Instruct" / "model.safetensors", "smollm2", weights=True)


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., Path]:
    """`tiny_model(name, weights=False)`: a Hugging Face folder with the real tokenizer `name` (see TINY_MODELS).

    With `weights` the folder also holds two random layers that an engine can load.
    """

    def folder(name: str, weights: bool = False) -> Path:
        file = "model.safetensors" if weights else "config.json"
        return fetch(CACHE / "models" / f"{name}-tiny" / file, name, weights=weights)

    return folder


@pytest.fixture(scope="session")
def family_tokenizer(tiny_model: Any) -> Callable[[str], Path]:
    """`family_tokenizer(family)`: the test tokenizer of one output format family, by the names in `../shared/parity/families.json`."""

    def folder(family: str) -> Path:
        out = CACHE / "families" / family
        if not (out / "config.json").exists():
            parity = _shared_or_skip() / "parity"
            base = json.loads((parity / "families.json").read_text())[family]["base"]
            tiny_model(base)
            with _cache_lock():
                if not (out / "config.json").exists():
                    bases = CACHE / "models" / "tokenizers"
                    _run_recipe(parity / "make_tokenizers.py", bases, CACHE / "families", family)
        return out

    return folder
