"""Text ↔ token ids. Knows no requests, no conversations and no models: only files, a vocabulary and how its tokens spell text."""

from scaleout.tokenizer.decode_window import (
    DecodeWindow,
    decode_next,
    dump_window,
    flush_window,
    load_window,
    open_window,
)
from scaleout.tokenizer.fast import speed_up
from scaleout.tokenizer.files import ModelFiles, load_model_files
from scaleout.tokenizer.load import Backend, load_tokenizer
from scaleout.tokenizer.tokenizer import Tokenizer

__all__ = [
    "Backend",
    "DecodeWindow",
    "ModelFiles",
    "Tokenizer",
    "decode_next",
    "dump_window",
    "flush_window",
    "load_model_files",
    "load_tokenizer",
    "load_window",
    "open_window",
    "speed_up",
]
