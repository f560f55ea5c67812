"""Steps of ever new numbers of rows do not make an engine on a CPU grow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from asking import Source

from scaleout.generate.packed_linear import can_pack

pytestmark = [pytest.mark.engine, pytest.mark.skipif(not can_pack(), reason="torch was built without oneDNN")]

ENGINE = """
import asyncio
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

import psutil
from asking import ask_one, opened, source

LONGEST, APART, ROUNDS = 1000, 16, 3


async def main():
    # Blocks for which there are no compiled loops: all products are oneDNN's, those of attention too.
    options = {"device": "cpu", "threads": 1, "block_size": 6, "max_num_batched_tokens": 1024}
    async with opened(source(Path(sys.argv[2])), enable_prefix_caching=False, **options) as engine:
        for first in range(1, 1 + ROUNDS):
            for length in range(first, LONGEST, APART):
                await ask_one(engine, [3 + place % 90 for place in range(length)], max_tokens=1, temperature=0)
            print(psutil.Process().memory_info().rss >> 20)


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def files(random_model: Callable[..., Source]) -> Source:
    size = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 1024}
    return random_model("llama", **size, dtype="bfloat16")


def growth(files: Source, tmp_path: Path, **environment: str) -> int:
    """MB from the end of the first round of prompts to the end of the last, all of other lengths."""
    program = tmp_path / "engine.py"
    program.write_text(ENGINE)
    assert files.folder is not None
    command = [sys.executable, str(program), str(Path(__file__).parent), str(files.folder)]
    told = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=120
    )
    memory = [int(line) for line in told.stdout.split()]
    assert len(memory) == 3, told.stderr
    return memory[-1] - memory[0]


def test_kernels_for_new_numbers_of_rows_replace_old_ones(files: Source, tmp_path: Path) -> None:
    """Held against what it would be without a bound, which shows that there is something to see on this machine."""
    many = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4096", "LRU_CACHE_CAPACITY": "4096"}
    unbounded = growth(files, tmp_path, **many)
    if unbounded < 60:
        pytest.skip(f"oneDNN keeps next to nothing for a number of rows here: {unbounded} MB")
    assert growth(files, tmp_path) < unbounded / 3
