"""Content parts that stand for media, whatever API they came from → references to fetch (CONTRACT 3.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaleout.core import Json, Part
from scaleout.core.media import MediaRef
from scaleout.errors import BadRequest

MODALITY_OF: Mapping[str, str] = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio": "audio",
    "video_url": "video",
    "video": "video",
}
"""Part type → kind of media."""

UNSERVED = frozenset(("image_embeds", "image_pil", "audio_embeds", "video_embeds", "prompt_embeds"))
"""Parts that carry tensors, which only a trusted process could send."""

MAX_UUID = 256
"""Characters. It becomes a key of caches here and in the engine."""


def read_media(part: Part, path: str) -> MediaRef:
    """The reference of one media part. Raises `BadRequest` that names the place."""
    if part.type in UNSERVED:
        raise BadRequest(f"{path}: parts of the type {part.type!r} are not served; send the media itself.", path)
    modality = MODALITY_OF[part.type]
    uuid = part.data.get("uuid")
    if uuid is not None and not (isinstance(uuid, str) and 0 < len(uuid) <= MAX_UUID):
        raise BadRequest(f"{path}.uuid: Input should be a string of 1 to {MAX_UUID} characters", f"{path}.uuid")
    if part.data.get("file_id") is not None:
        raise BadRequest(
            f"{path}.file_id: there are no stored files here; send the media or its URL.", f"{path}.file_id"
        )
    url = _read_url(part.type, part.data, path)
    if url is None and uuid is None:
        raise BadRequest(f"{path}: this part names no media: a URL, data or a uuid is needed.", path)
    return MediaRef(modality, url, uuid, path)


def _read_url(kind: str, data: Mapping[str, Json], path: str) -> str | None:
    """The URL of a part, in any of its spellings: a string, `{"url": …}`, or data with a format. None where none is given."""
    if kind == "input_audio":
        return _inline_audio(data.get("input_audio"), path)
    modality = MODALITY_OF[kind]
    for key in (f"{modality}_url", kind, "url"):
        value: Any = data.get(key)
        if isinstance(value, dict):
            key, value = f"{key}.url", value.get("url")
        if value is None:
            continue
        if not isinstance(value, str) or not value:
            raise BadRequest(f"{path}.{key}: Input should be a URL", f"{path}.{key}")
        return value
    return None


def _inline_audio(value: Json, path: str) -> str | None:
    if value is None:
        return None
    data = value.get("data") if isinstance(value, dict) else None
    if not isinstance(data, str) or not data:
        raise BadRequest(f"{path}.input_audio.data: Input should be base64", f"{path}.input_audio.data")
    kind = value.get("format")
    if kind is not None and not (isinstance(kind, str) and kind.isalnum() and len(kind) <= 16):
        raise BadRequest(
            f"{path}.input_audio.format: Input should be the name of a format", f"{path}.input_audio.format"
        )
    return f"data:audio/{kind or 'wav'};base64,{data}"
