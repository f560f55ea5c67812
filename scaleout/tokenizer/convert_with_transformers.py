"""The one program here that imports transformers: read a folder's tokenizer and write it as tokenizer.json.

usage: python -m scaleout.tokenizer.convert_with_transformers FOLDER OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def convert(folder: str, out: Path) -> None:
    """Write tokenizer.json, and about.json with what that file cannot say. Ends the program with a reason when it cannot."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (ImportError, ValueError, OSError, RuntimeError) as error:
        sys.exit(" ".join(str(error).split()))
    library = getattr(tokenizer, "backend_tokenizer", None)
    if library is None:
        sys.exit(f"{type(tokenizer).__name__} is a Python tokenizer, which has no tokenizer.json form")
    library.no_truncation()
    library.no_padding()
    about = {
        "class": type(tokenizer).__name__,
        "special_tokens": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "split_special_tokens": bool(tokenizer.split_special_tokens),
    }
    (out / "about.json").write_text(json.dumps(about), encoding="utf-8")
    (out / "tokenizer.json").write_text(library.to_str(), encoding="utf-8")


if __name__ == "__main__":
    convert(sys.argv[1], Path(sys.argv[2]))
