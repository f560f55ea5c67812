"""An engine that computes on all cores has a thread on each of them; one that does not leaves its threads to the system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from asking import Source

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no threads"),
]

ASK = """
import asyncio, json, os, sys

os.sched_setaffinity(0, json.loads(sys.argv[4]))
sys.path.insert(0, sys.argv[1])
from asking import ask_one, opened
from scaleout.tokenizer import load_model_files


async def main():
    async with opened(load_model_files(sys.argv[2]), threads=int(sys.argv[3])) as engine:
        answer = await ask_one(engine, list(range(3, 60)), temperature=0, max_tokens=5, ignore_eos=True)
        bound = [sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")]
        print(json.dumps([len(answer.token_ids), [cores for cores in bound if len(cores) < len(os.sched_getaffinity(0))]]))


asyncio.run(main())
"""


def bound_cores(files: Source, threads: int, cores: set[int]) -> list[list[int]]:
    """Of the threads of an engine in a process that may use `cores`: those bound to some of them."""
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            ASK,
            os.path.dirname(__file__),
            str(files.folder),
            str(threads),
            json.dumps(list(cores)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert told.returncode == 0, told.stderr
    tokens, bound = json.loads(told.stdout)
    assert tokens == 5
    return sorted(bound)


def test_a_core_each(random_model: Callable[..., Source]) -> None:
    files, cores = random_model("llama"), sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("there is one core only")
    assert bound_cores(files, 2, set(cores)) == [[cores[0]], [cores[1]]]
    assert bound_cores(files, 1, set(cores)) == []
    assert bound_cores(files, 1, {cores[1]}) == []
