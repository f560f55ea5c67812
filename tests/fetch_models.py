"""Put the small model into the cache before anything is tested: environments without torch can read it, but not write it.

python -m tests.fetch_models
"""

from __future__ import annotations

import pytest

from tests.conftest import CACHE, fetch


def main() -> None:
    try:
        fetch(CACHE / "models" / "SmolLM2-135M-Instruct" / "model.safetensors", "smollm2", weights=True)
    except pytest.skip.Exception as reason:
        print(f"no small model: {reason}")


if __name__ == "__main__":
    main()
