"""Features between the peer and us: its decoder reads ours and writes them back byte for byte; its render makes the same prompt."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from media_files import data_url, picture
from serving import Server, serving

from scaleout.app import make_app
from scaleout.config import Mode, ModeConfig
from scaleout.core import Field, Tensor
from scaleout.core.features import Batched, Flat, Shared
from scaleout.feature_wire import encode_item, read_features
from scaleout.render.modality import array_of
from tests.render.mm_models import FAMILIES, build

pytestmark = pytest.mark.peer
np = pytest.importorskip("numpy")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

CHAT = "/v1/chat/completions/render"
DECODER = """
import sys
from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import decode_mm_kwargs_item, encode_mm_kwargs_item
for line in sys.stdin:
    item = decode_mm_kwargs_item(line.strip())
    print("shown", {name: (str(getattr(one.data, "dtype", "")), one.field) for name, one in item.items()}, file=sys.stderr)
    print("again " + encode_mm_kwargs_item(item))
"""


def floats(*shape: int) -> Tensor:
    return Tensor("float32", shape, np.arange(int(np.prod(shape)), dtype="float32").tobytes())


ITEMS = [
    {"pixel_values": Field(floats(5, 4), Flat([(0, 2, None), (2, 5, None)])), "n": Field(3, Shared(1, True))},
    {
        "grid": Field(Tensor("int64", (3,), bytes(24)), Batched(True)),
        "parts": Field([floats(2, 2), floats(3)], Batched()),
    },
    {
        "empty": Field(Tensor("bfloat16", (0, 4), b""), Shared(2)),
        "scalar": Field(Tensor("bool", (), b"\x01"), Batched()),
    },
    {"deep": Field(floats(2, 3), Flat([[(None, None, None), (0, 2, None)], [(None, None, None), (2, 3, None)]], 1))},
]


def test_its_own_decoder_reads_every_kind_of_field(peer_command: str) -> None:
    sent = [encode_item(item) for item in ITEMS]
    python = Path(peer_command).with_name("python")
    done = subprocess.run(
        [python, "-c", DECODER], input="\n".join(sent), capture_output=True, text=True, timeout=110, check=False
    )
    again = [line.removeprefix("again ") for line in done.stdout.splitlines() if line.startswith("again ")]
    assert again == sent, done.stderr[-2000:]


@pytest.fixture(scope="module")
def both(
    start_peer: Callable[..., Any], tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    """Our render server and the peer's, for one model of Qwen2-VL's kind."""
    family = FAMILIES["qwen2_vl"]
    config = {**family.config, "architectures": ["Qwen2VLForConditionalGeneration"], "torch_dtype": "float32"}
    folder = str(build(evolve(family, config=config), tiny_model("qwen3"), tmp_path_factory.mktemp("qwen2_vl")))
    ours = make_app(ModeConfig(Mode.RENDER_ONLY, model=folder, served_model_names=("m",), workers=1))
    with ExitStack() as running:
        try:
            peer = running.enter_context(start_peer("launch", "render", folder, "--served-model-name", "m"))
        except AssertionError as error:
            if "failed to be inspected" not in str(error):
                raise
            pytest.skip("the peer lacks torchvision, without which it serves no pictures")
        yield running.enter_context(serving(ours)), peer


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "RGBA"])
def test_its_render_makes_the_same_prompt_of_the_same_pictures(kind: str, both: tuple[Server, Server]) -> None:
    images = [picture(200, 120), picture(90, 260, 1)]
    if kind == "RGBA":
        for image in images:
            image.putalpha(128)
    parts: list[Any] = [{"type": "text", "text": "What?"}]
    for image in images:
        url = data_url(image, "PNG" if kind == "RGBA" else kind)
        parts.append({"type": "image_url", "image_url": {"url": url}})
    body = {"model": "m", "messages": [{"role": "user", "content": parts}], "max_tokens": 9}
    ours, peers = (server.ask("POST", CHAT, body).json for server in both)
    if "failed to be inspected" in str(peers.get("error")):
        pytest.skip("the peer lacks torchvision, without which it serves no pictures")
    assert ours["token_ids"] == peers["token_ids"]
    for name in ("mm_hashes", "mm_placeholders", "mm_metadata"):
        assert ours["features"][name] == peers["features"][name]
    read = [read_features(one["features"], len(one["token_ids"])) for one in (ours, peers)]
    assert read[0] is not None
    assert read[1] is not None
    for mine, its in zip(read[0].items, read[1].items, strict=True):
        assert mine.fields is not None
        assert its.fields is not None
        assert mine.fields.keys() == its.fields.keys()
        a, b = (fields["pixel_values"].data for fields in (mine.fields, its.fields))
        assert isinstance(a, Tensor)
        assert isinstance(b, Tensor)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        # Two libraries resize: Pillow here, torchvision there.
        assert np.abs(array_of(a).astype(int) - array_of(b).astype(int)).max() <= 4
