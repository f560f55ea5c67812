"""Pictures made for tests, as files and as data URLs, and files that lie about what they hold."""

from __future__ import annotations

import io
import struct
import zlib
from base64 import b64encode
from typing import Any


def picture(width: int, height: int, seed: int = 0) -> Any:
    """Something smooth with edges in it, so that a resampling filter has to do work."""
    import numpy as np
    from PIL import Image

    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin((x + seed * 7) / 9), np.cos(y / 7), np.sin((x + y) / 13)], -1) * 100 + 128
    waves[height // 3 : height // 2, width // 4 : width // 2] = (250, 20, 90)
    return Image.fromarray(waves.clip(0, 255).astype("uint8"))


def file_of(image: Any, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def data_url(image: Any, kind: str = "PNG") -> str:
    return url_of(file_of(image, kind), f"image/{kind.lower()}")


def url_of(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{b64encode(data).decode()}"


def false_png(width: int, height: int, extra: int = 0) -> bytes:
    """A PNG file whose header claims a size that its few bytes do not hold."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(extra), 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
