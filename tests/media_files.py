"""Pictures, sounds and films made for tests, as files and as data URLs, and files that lie about what they hold."""

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


def film(
    frames: int, rate: int = 8, still: bool = False, size: tuple[int, int] = (224, 168), kind: str = "mp4"
) -> bytes:
    """A film of that many frames, `rate` a second."""
    import av
    import numpy as np

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=kind) as out:
        stream = out.add_stream("mpeg4", rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for i in range(frames):
            image = picture(*size, seed=0 if still else i)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def sound(seconds: float, rate: int = 16_000, channels: int = 1, pitch: int = 200) -> bytes:
    """A WAV file of a rising tone."""
    import numpy as np
    import pytest

    soundfile = pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    times = np.arange(int(seconds * rate)) / rate
    wave = np.sin(2 * np.pi * (pitch + 100 * times) * times).astype("float32") * 0.5
    buffer = io.BytesIO()
    soundfile.write(buffer, np.stack([wave] * channels, 1), rate, format="WAV")
    return buffer.getvalue()


def false_png(width: int, height: int, extra: int = 0) -> bytes:
    """A PNG file whose header claims a size that its few bytes do not hold."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(extra), 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
