"""Loops are compiled by other processes at the first start; when these cannot, the engine starts all the same."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copy, copytree

import pytest

pytest.importorskip("numba")
pytest.importorskip("torch")

import numba
from asking import Source, ask_one, opened
from numba.core import caching

import scaleout
from scaleout.errors import ConfigError
from scaleout.generate import compile_ahead
from scaleout.generate.compile_ahead import compiling_ahead, pick_kind, wait_for_compilers
from scaleout.generate.compiled.kept import note_for
from scaleout.generate.options import EngineOptions

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform != "linux", reason="loops run on torch's OpenMP, as it is on Linux"),
]

PROMPT = list(range(3, 60))
OPTIONS = EngineOptions(device="cpu", dtype="float32")


@pytest.fixture
def _cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine that has compiled nothing. What this process has compiled already, it keeps."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    yield
    assert compile_ahead._at_work == []


def python(folder: Path, does: str) -> str:
    """A program of that name that does something else."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    return str(program)


async def answer(files: Source) -> list[int]:
    async with opened(files, device="cpu", dtype="float32") as engine:
        return list((await ask_one(engine, PROMPT, temperature=0, max_tokens=20, ignore_eos=True)).token_ids)


FIRST_START = """
import sys
from pathlib import Path

from scaleout.generate.compile_ahead import compiling_ahead, wait_for_compilers
from scaleout.generate.options import EngineOptions


class Files:
    config = {"dtype": "bfloat16"}


def kept():
    return {path.name: path.stat().st_mtime_ns for path in Path(sys.argv[1]).rglob("*") if path.is_file()}


with compiling_ahead(Files, EngineOptions(device="cpu")):
    assert "torch" not in sys.modules
    wait_for_compilers()
before = kept()

import torch
from scaleout.generate.compiled.loops import open_loops

torch.set_num_threads(2)
rows = torch.randn(600, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
norm = torch.cat([torch.tensor([1e-3]), torch.full((64,), 8.0)])
told = open_loops(torch.bfloat16).normalise(rows, norm)
print("right" if torch.allclose(told.float(), torch.nn.functional.rms_norm(rows.float(), (64,)), atol=0.05) else "wrong")
print("nothing more to compile" if kept() == before else sorted(set(kept().items()) ^ set(before.items())))
print(*(name for name in before if name.endswith(".complete")))
"""


def test_a_first_start_loads_what_other_processes_compiled(tmp_path: Path) -> None:
    """All of it, and on the threads of this process's torch: the others had none."""
    program = tmp_path / "start.py"
    program.write_text(FIRST_START)
    folder = tmp_path / "kept"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, str(program), str(folder)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    right, rest, note = (run.stdout + "\n\n\n").split("\n")[:3]
    assert (right, rest) == ("right", "nothing more to compile"), run.stdout + run.stderr
    assert note.startswith("bfloat16-")
    assert run.stderr == ""


@pytest.mark.usefixtures("_cold")
@pytest.mark.parametrize(
    ("does", "patience", "told"), [("exit 3", 60.0, "failed"), ("exec sleep 600", 0.2, "not compiled after")]
)
def test_an_engine_starts_when_other_processes_cannot_compile(
    random_model: Callable[..., Source],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    does: str,
    patience: float,
    told: str,
) -> None:
    files = random_model("llama")
    with monkeypatch.context() as known:
        known.setattr(sys, "frozen", True, raising=False)
        expected = asyncio.run(answer(files))
    monkeypatch.setattr(sys, "executable", python(tmp_path, does))
    monkeypatch.setattr(compile_ahead, "PATIENCE", patience)
    with caplog.at_level("INFO"):
        assert asyncio.run(answer(files)) == expected
    assert told in caplog.text
    note = note_for("float32")
    assert note is not None
    assert not note.exists()


@pytest.mark.usefixtures("_cold")
def test_no_process_outlives_an_opening_that_fails(
    random_model: Callable[..., Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", python(tmp_path, "exec sleep 600"))
    seen: list[subprocess.Popen[bytes]] = []

    def fail() -> None:
        with compiling_ahead(random_model("llama"), OPTIONS):
            seen.append(compile_ahead._at_work[0].process)
            assert seen[0].poll() is None
            raise ConfigError("no such model")

    with pytest.raises(ConfigError, match="no such model"):
        fail()
    assert seen[0].returncode is not None


@pytest.mark.usefixtures("_cold")
def test_who_has_all_kept_or_can_keep_nothing_starts_no_process(
    random_model: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = random_model("llama")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python-that-is-not-there")
    note = note_for("float32")
    assert note is not None
    note.touch()
    with compiling_ahead(files, OPTIONS):
        assert compile_ahead._at_work == []
    note.unlink()
    with compiling_ahead(files, OPTIONS):  # there is no such program
        assert compile_ahead._at_work == []
        wait_for_compilers()
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert note_for("float32") is None
    with compiling_ahead(files, OPTIONS):
        assert compile_ahead._at_work == []


@pytest.mark.usefixtures("_cold")
@pytest.mark.parametrize("program", ["", "/usr/sbin/webserver"])
def test_a_program_with_python_in_it_is_not_started_again(
    random_model: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with compiling_ahead(random_model("llama"), OPTIONS):
        assert compile_ahead._at_work == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (EngineOptions(device="cpu"), "float32"),
        (EngineOptions(device="cpu", dtype="bfloat16"), "bfloat16"),
        (EngineOptions(device="cpu", dtype="half"), None),
        (EngineOptions(device="cuda:1"), None),
        (EngineOptions(device="cpu", backend="echo"), None),
    ],
)
def test_loops_for_what_kind_of_number(
    random_model: Callable[..., Source], options: EngineOptions, expected: str | None
) -> None:
    assert pick_kind(random_model("llama"), options) == expected


def python_in(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Python, with the package's copy in the folder."""
    command = [sys.executable, "-P", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "kept")}
    return subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.PIPE)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with a copy of the package, as far as compiling needs it."""
    ours = Path(scaleout.__file__).parent
    for name in ("__init__.py", "generate/__init__.py"):
        (tmp_path / "scaleout" / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ours / name, tmp_path / "scaleout" / name)
    copytree(ours / "generate/compiled", tmp_path / "scaleout/generate/compiled")
    return tmp_path


def test_a_compiler_ends_with_who_started_it(package: Path) -> None:
    process = python_in(package, "-m", "scaleout.generate.compiled", "float32", "2")
    began = time.monotonic()
    with process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 1
    assert not list((package / "kept").rglob("look_back*")), f"it went on for {time.monotonic() - began:.0f} s"


COMPILE_TURN = """
from scaleout.generate.compiled.__main__ import FLOATS, compile_turn, pretend_threads

pretend_threads()
compile_turn(FLOATS)
"""


def test_a_loop_is_compiled_again_when_what_it_was_made_of_has_changed(package: Path) -> None:
    """`turn` holds a part of `norm`, in another file."""

    def kept() -> set[str]:
        with python_in(package, "-c", COMPILE_TURN) as process:
            assert process.wait(60) == 0
        return {path.name for path in (package / "kept").rglob("turn*.nbc")}

    first = kept()
    assert len(first) == 1
    assert kept() == first
    norm = package / "scaleout/generate/compiled/norm.py"
    norm.write_text(norm.read_text() + "\n# changed\n")
    assert len(kept() - first) == 1
