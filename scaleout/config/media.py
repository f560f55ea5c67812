"""MediaOptions: what this server does with pictures, sounds and films, and what it refuses. Each bound ends with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen

from scaleout.config.options import COMMA_LIST, OBJECT, SWITCH, Kind, choice, decimal, integer, option

_media = partial(option, group="media")

KINDS = ("image", "audio", "video")


def _read_folder(value: Any) -> str:
    folder = Path(str(value)).expanduser()
    if value and not folder.is_dir():
        raise ValueError("there is no such folder")
    return str(folder.resolve()) if value else ""


def _read_networks(value: Any) -> tuple[str, ...]:
    from ipaddress import ip_network

    given = COMMA_LIST.read(value)
    for one in given:
        try:
            ip_network(one)
        except ValueError:
            raise ValueError("networks are needed, such as 10.1.0.0/16") from None
    return tuple(given)


def _read_counts(value: Any) -> Mapping[str, int]:
    """`image=4,audio=1`, `{"image": 4}` or `{"image": {"count": 4}}`."""
    if isinstance(value, str) and "=" in value and "{" not in value:
        value = {name.strip(): count for name, _, count in (part.partition("=") for part in value.split(","))}
    counts = {}
    for name, count in OBJECT.read(value).items():
        if isinstance(count, dict):
            count = count.get("count")
        if name not in KINDS:
            raise ValueError(f"kinds of media are {', '.join(KINDS)}")
        if isinstance(count, str) and count.isdecimal():
            count = int(count)
        if type(count) is not int or count < 0:
            raise ValueError(f"a whole number is needed for {name}")
        counts[name] = count
    return counts


FOLDER = Kind(_read_folder, "FOLDER")
NETWORKS = Kind(_read_networks, "NET,NET")
COUNTS = Kind(_read_counts, "JSON")


def _read_hosts(value: Any) -> tuple[str, ...]:
    """Several words, or words with commas between them, or a JSON list."""
    items = value if isinstance(value, list | tuple) else [value]
    words = [word.strip().strip("[]\"'") for item in items for word in str(item).split(",")]
    return tuple(word.lower().rstrip(".") for word in words if word)


HOSTS = Kind(_read_hosts, "HOST", many=True)


@frozen
class MediaOptions:
    """Media in requests. Which kinds a model takes, its own files say."""

    allowed_domains: Sequence[str] = _media(
        (),
        HOSTS,
        "Hosts that media may be fetched from; .example.com stands for all below it. Default: any public host.",
        name="--allowed-media-domains",
    )
    allowed_networks: Sequence[str] = _media(
        (),
        NETWORKS,
        "Networks that media may be fetched from though they are not public. Default: none.",
        name="--allowed-media-networks",
    )
    allowed_local_path: str = _media(
        "",
        FOLDER,
        "Folder whose files requests may name by file:// URLs. Default: none.",
        name="--allowed-local-media-path",
    )
    allow_redirects: bool = _media(
        True,
        SWITCH,
        "Follow redirects, each target checked like the first.",
        name="--media-url-allow-redirects",
        vllm_env="VLLM_MEDIA_URL_ALLOW_REDIRECTS",
    )
    fetch_timeout: float = _media(
        20.0,
        decimal(0.1, 600.0),
        "Seconds for one file, redirects included. A stalled host must not hold a request.",
        name="--media-fetch-timeout",
    )
    max_bytes: int = _media(
        64 << 20, integer(1), "Bytes of one file. As many as a body may bring in.", name="--max-media-bytes"
    )
    max_total_bytes: int = _media(
        256 << 20,
        integer(1),
        "Bytes of all files of one request. They lie in memory together.",
        name="--max-total-media-bytes",
    )
    max_concurrent_fetches: int = _media(
        16,
        integer(1),
        "Files being fetched at a time, each process. They may all be large.",
        name="--max-media-fetches",
    )
    max_image_pixels: int = _media(
        64 << 20,
        integer(1),
        "Pixels of a picture, and of all being decoded at a time. A small file can hold a huge one, which takes 13 bytes a pixel.",
        name="--max-image-pixels",
        vllm_env="VLLM_MAX_IMAGE_PIXELS",
    )
    max_audio_seconds: float = _media(
        600.0,
        decimal(0),
        "Seconds of one sound. Features grow with them.",
        name="--max-audio-seconds",
        vllm_env="VLLM_MAX_AUDIO_DECODE_DURATION_S",
    )
    max_video_frames: int = _media(
        768, integer(1), "Frames taken of one film. Each is prepared like a picture.", name="--max-video-frames"
    )
    max_items: int = _media(128, integer(0), "Media items in one request. Each is a file.", name="--max-media-items")
    limit_per_prompt: Mapping[str, int] = _media(
        {}, COUNTS, 'Items of each kind in one request, such as {"image": 4}.', name="--limit-mm-per-prompt"
    )
    processor_kwargs: Mapping[str, Any] = _media(
        {}, OBJECT, "Arguments for the model's processors.", name="--mm-processor-kwargs"
    )
    io_kwargs: Mapping[str, Any] = _media(
        {},
        OBJECT,
        'How files are read, by kind, such as {"image": {"rgba_background_color": [0, 0, 0]}}.',
        name="--media-io-kwargs",
    )
    trust_request_kwargs: bool = _media(
        False, SWITCH, "Let requests bring mm_processor_kwargs and media_io_kwargs.", name="--trust-request-mm-kwargs"
    )
    device_normalize: bool = _media(
        True,
        SWITCH,
        "Send pixels as they are where the model's engine brings them into range itself, as vLLM's does by default.",
        name="--mm-device-do-normalize",
    )
    cache_gb: float = _media(
        0.5,
        decimal(0),
        "GiB of prepared media that are kept for later requests, each process. 0 keeps none.",
        name="--mm-processor-cache-gb",
    )
    hasher: str = _media(
        "blake3", choice("blake3", "sha256", "sha512"), "Digest that names media.", name="--mm-hasher-algorithm"
    )
    interleave_strings: bool = _media(
        False,
        SWITCH,
        "For templates that see text alone: leave media where they stand in a message, not in front of it.",
        name="--interleave-mm-strings",
    )
