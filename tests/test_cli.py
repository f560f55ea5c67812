"""The command: what it prints, its exit codes, and what it does not load."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scaleout import __version__
from scaleout.cli import run_command
from scaleout.config.help import GROUPS

SWITCH = "VLLM_ENABLE_SCALE_OUT_ENDPOINTS"
CLEAN = {name: text for name, text in os.environ.items() if not name.startswith(("SCALEOUT_", "VLLM_"))}


def scaleout(*words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "scaleout", *words]
    return subprocess.run(command, env=CLEAN | (environ or {}), capture_output=True, text=True, timeout=60, check=False)


def test_version_answers_at_once() -> None:
    """Within 0.15 s, counted in processor time: what a test machine does besides is not the command's fault."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(3):
        done = scaleout("--version")
        assert (done.returncode, done.stdout) == (0, f"scaleout {__version__}\n")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 3 < 0.15


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--version"], "torch aiohttp tokenizers jinja2 attr argparse typing asyncio"),
        (["launch", "render", "--help"], "torch aiohttp tokenizers jinja2 yaml asyncio"),
    ],
)
def test_what_needs_no_server_loads_none(words: list[str], absent: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "scaleout", *words],
        env=CLEAN,
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0
    assert "scaleout" in loaded
    assert loaded & set(absent.split()) == set()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["launch", "render", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: scaleout launch render MODEL")
    assert [name for name in GROUPS if f"\n{name}: {GROUPS[name]}\n" in text] == [
        name for name in GROUPS if name != "peer"
    ]
    assert run_command(["serve", "--help=limits"]) == 0
    assert "--max-body-bytes" in capsys.readouterr().out
    assert run_command(["launch", "render", "--help=all"]) == 0
    assert "--tensor-parallel-size" in capsys.readouterr().out
    assert run_command(["serve", "--help=nothing"]) == 2
    assert "there is no such group" in capsys.readouterr().err


def test_no_words_at_all_shows_how_to_start() -> None:
    done = scaleout()
    assert (done.returncode, done.stdout) == (2, "")
    assert "scaleout launch render MODEL" in done.stderr


@pytest.mark.parametrize(
    ("words", "environ", "said"),
    [
        (["serve", "M"], {SWITCH: "2"}, f"scaleout: {SWITCH}=2: the value must be exactly 0 or 1\n"),
        (
            ["launch", "render", "M"],
            {SWITCH: "0"},
            f"scaleout: {SWITCH}=0 conflicts with scaleout launch render; unset it or set it to 1\n",
        ),
        (
            ["serve", "M", "--tokens-only"],
            {SWITCH: "0"},
            f"scaleout: {SWITCH}=0 conflicts with --tokens-only; unset it or set it to 1\n",
        ),
        (
            ["M"],
            {"SCALEOUT_MODE": "render"},
            "scaleout: SCALEOUT_MODE=render: unknown mode; it must be one of render-only, tokens-only, standard\n",
        ),
        (["serve", "M", "--prot", "1"], {}, "scaleout: unknown flag --prot (did you mean --port?)\n"),
    ],
)
def test_a_server_that_cannot_start_as_asked_says_so_once_and_exits_2(
    words: list[str], environ: dict[str, str], said: str
) -> None:
    done = scaleout(*words, environ=environ)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_a_taken_port_is_one_message_and_exit_2(smollm2_gguf: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = scaleout("launch", "render", str(smollm2_gguf), "--host", "127.0.0.1", "--port", port)
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_is_not_there_is_one_message_and_exit_2(tmp_path: Path) -> None:
    done = scaleout("launch", "render", str(tmp_path / "nothing"), "--port", "0")
    assert done.returncode == 2
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr
