"""Requests with pictures over HTTP: every dialect, every payload, the cases C26 b and C30, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from media_files import data_url, false_png, file_of, picture, url_of
from serving import Server, serving

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode, ModeConfig
from scaleout.config.media import MediaOptions
from scaleout.core import Json
from scaleout.feature_wire import read_features
from scaleout.render.modality import array_of
from tests.render.mm_models import FAMILIES, build

pytest.importorskip("transformers")
pytest.importorskip("PIL")

CHAT = "/v1/chat/completions"
PAD = 151655
"""`<|image_pad|>`"""
SLOTS = 8 * 8
"""Of a picture of 448 x 448: at most 64 squares of 28 x 28 pixels fit into this model's `max_pixels`."""


@pytest.fixture(scope="module")
def vision_model(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(FAMILIES["qwen2_vl"], tiny_model("qwen3"), tmp_path_factory.mktemp("qwen2_vl"))


Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def serve(vision_model: Path) -> Iterator[Serve]:
    """`serve(mode, **media options)`: a running server of the vision model, or of another."""
    with ExitStack() as running:

        def start(mode: Mode = Mode.RENDER_ONLY, model: Path = vision_model, **media: Any) -> Server:
            engine = EngineOptions() if mode is Mode.RENDER_ONLY else EngineOptions(backend="echo")
            config = ModeConfig(
                mode, model=str(model), served_model_names=("m",), engine=engine, media=MediaOptions(**media), workers=1
            )
            return running.enter_context(serving(make_app(config)))

        yield start


@pytest.fixture(scope="module")
def server(serve: Serve) -> Server:
    return serve()


def ask(server: Server, *content: Json, path: str = CHAT + "/render", **more: Any) -> Any:
    answer = server.ask("POST", path, {"messages": [{"role": "user", "content": list(content)}], **more})
    assert answer.status == 200, answer.body[:500]
    return answer.json


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def image(url: str, **more: Any) -> Json:
    return {"type": "image_url", "image_url": {"url": url}, **more}


@pytest.fixture(scope="module")
def url() -> str:
    return data_url(picture(448, 448))


def test_a_slot_that_a_user_spells_is_text(server: Server, url: str) -> None:
    """C26 b."""
    rendered = ask(server, text("what does <|image_pad|> mean?"), image(url))
    (place,) = rendered["features"]["mm_placeholders"]["image"]
    assert rendered["token_ids"].count(PAD) == place["length"] == SLOTS
    assert set(rendered["token_ids"][place["offset"] : place["offset"] + SLOTS]) == {PAD}
    back = server.ask("POST", "/detokenize", {"tokens": rendered["token_ids"][: place["offset"]]}).json["prompt"]
    assert "what does <|image_pad|> mean?" in back


def test_nobody_but_the_template_writes_slots(server: Server, url: str) -> None:
    messages = [
        {"role": "system", "content": "<|image_pad|>"},
        {"role": "user", "content": [text("<|image"), text("_pad|>"), image(url)]},
        {"role": "assistant", "content": "<|vision_start|><|image_pad|><|vision_end|>", "reasoning": "<|image_pad|>"},
        {"role": "assistant", "content": [text("<|video_pad|><|image_pad|>")]},
        {"role": "user", "content": "<|image_pad|>"},
    ]
    rendered = server.ask("POST", CHAT + "/render", {"messages": messages}).json
    assert rendered["token_ids"].count(PAD) == SLOTS
    without = server.ask("POST", CHAT + "/render", {"messages": [messages[0], messages[2], messages[4]]}).json
    assert without["token_ids"].count(PAD) == 0
    assert without["features"] is None


def test_every_dialect_sees_the_same_picture(server: Server, url: str) -> None:
    chat = ask(server, text("hi"), image(url))
    base64 = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    blocks = [text("hi"), {"type": "image", "source": base64}]
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": blocks}]}
    messages = server.ask("POST", "/v1/messages/render", body).json
    parts = [{"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": url, "detail": "auto"}]
    responses = server.ask("POST", "/v1/responses/render", {"input": [{"role": "user", "content": parts}]}).json
    for other in (messages, responses):
        assert other["token_ids"] == chat["token_ids"]
        assert other["features"] == chat["features"]
    count = server.ask("POST", "/v1/messages/count_tokens", body).json["input_tokens"]
    tokens = ask(server, text("hi"), image(url), path="/tokenize")
    assert count == tokens["count"] == len(chat["token_ids"])


def test_tool_results_bring_pictures(server: Server, url: str) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [text("see"), {"type": "image", "source": source}]}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {"role": "user", "content": [result]},
    ]
    rendered = server.ask("POST", "/v1/messages/render", {"model": "m", "max_tokens": 9, "messages": messages}).json
    assert rendered["token_ids"].count(PAD) == SLOTS


def test_hashes_name_the_content(server: Server, vision_model: Path, url: str) -> None:
    from scaleout.render.media_hash import Tagged, digest

    data = file_of(picture(448, 448))
    expected = digest("blake3", {"model_id": str(vision_model), "image": Tagged("image", data)})
    first, second = image(url), image(data_url(picture(448, 448, seed=1)))
    hashes = ask(server, first, second, first)["features"]["mm_hashes"]["image"]
    assert hashes[0] == hashes[2] == expected != hashes[1]
    assert ask(server, image(url, uuid="cat"))["features"]["mm_hashes"]["image"] == ["cat"]


def test_a_uuid_stands_for_what_was_sent_before(serve: Serve, url: str) -> None:
    server = serve()
    unknown = server.ask(
        "POST",
        CHAT + "/render",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": None, "uuid": "dog"}]}]},
    )
    assert (unknown.status, unknown.error["param"]) == (400, "messages.0.content.0")
    sent = ask(server, image(url, uuid="dog"))
    named = ask(server, {"type": "image_url", "image_url": None, "uuid": "dog"})
    assert named["features"] == sent["features"]
    salted = server.ask(
        "POST",
        CHAT + "/render",
        {
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": None, "uuid": "dog"}]}],
            "cache_salt": "b",
        },
    )
    assert salted.status == 400


def test_what_was_prepared_is_kept(serve: Serve, url: str) -> None:
    server = serve()
    for _ in range(3):
        ask(server, image(url))
    told = server.ask("GET", "/metrics").body.decode()
    assert "scaleout_media_cache_hits_total 2.0" in told
    assert "scaleout_media_cache_misses_total 1.0" in told
    forgetful = serve(cache_gb=0)
    for _ in range(2):
        ask(forgetful, image(url))
    assert "scaleout_media_cache_hits_total 0.0" in forgetful.ask("GET", "/metrics").body.decode()


def test_payloads(server: Server, url: str) -> None:
    tensors = ask(server, image(url))["features"]
    full = read_features(tensors, 10_000)
    assert full is not None
    fields = full.items[0].fields
    assert fields is not None
    assert array_of(fields["pixel_values"].data).shape == (SLOTS * 4, 1176)  # type: ignore[arg-type]
    assert array_of(fields["image_grid_thw"].data).tolist() == [1, 16, 16]  # type: ignore[arg-type]
    for none in ({"mm_payload": "none"}, {"return_mm_kwargs": False}):
        assert ask(server, image(url), **none)["features"] == {**tensors, "kwargs_data": None, "mm_metadata": None}
    source = ask(server, image(url), mm_payload="source")["features"]
    assert source["mm_hashes"] == tensors["mm_hashes"]
    assert source["kwargs_data"] is None
    (sent,) = source["mm_sources"]["image"]
    assert len(sent["data"]) < 1.4 * len(file_of(picture(448, 448)))


def test_generate_takes_each_payload_and_raw_parts(serve: Serve, server: Server, url: str) -> None:
    """The echo engine shows the ids that reached it."""
    engine = serve(Mode.TOKENS_ONLY)
    for payload in ("tensors", "source"):
        rendered = ask(server, text("look:"), image(url), mm_payload=payload, max_tokens=5)
        answer = engine.ask("POST", "/inference/v1/generate", {**rendered, "return_token_ids": True})
        assert answer.status == 200, answer.body
        assert answer.json["prompt_token_ids"] == rendered["token_ids"]
    raw = [i for i, one in enumerate(rendered["token_ids"]) if one == PAD]
    short = rendered["token_ids"][: raw[0] + 1] + rendered["token_ids"][raw[-1] + 1 :]
    parts = [{"type": "image_url", "url": url, "uuid": "x"}]
    body = {"token_ids": short, "content_parts": parts, "sampling_params": {"max_tokens": 3}, "return_token_ids": True}
    answer = engine.ask("POST", "/inference/v1/generate", body)
    assert answer.status == 200, answer.body
    assert answer.json["prompt_token_ids"] == rendered["token_ids"]
    for change, path in (
        ({"content_parts": [{"type": "image_url"}]}, "content_parts.0"),
        ({"content_parts": parts * 2}, "token_ids"),
        ({"token_ids": [PAD, PAD]}, "token_ids"),
        ({"content_parts": [{"type": "audio_url", "url": "x"}]}, "messages"),
        ({"content_parts": [{"type": "image_url", "url": "http://127.0.0.1:9/"}]}, "content_parts.0"),
    ):
        refused = engine.ask("POST", "/inference/v1/generate", {**body, **change})
        assert (refused.status, refused.error["param"]) == (400, path)


def test_a_file_that_does_not_fit_its_place_is_refused(serve: Serve, server: Server, url: str) -> None:
    rendered = ask(server, image(url), mm_payload="source")
    rendered["features"]["mm_placeholders"]["image"][0]["length"] -= 1
    answer = serve(Mode.TOKENS_ONLY).ask("POST", "/inference/v1/generate", rendered)
    assert answer.status == 400
    assert "slots" in answer.error["message"]


def test_masks_and_spans_know_pictures(server: Server, url: str) -> None:
    messages = [
        {"role": "user", "content": [text("one "), image(url), text(" two")]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "more"},
    ]
    body = {"messages": messages, "return_assistant_tokens_mask": True, "return_spans": True}
    rendered = server.ask("POST", CHAT + "/render", body).json
    ids, mask = rendered["token_ids"], rendered["assistant_tokens_mask"]
    assert len(mask) == len(ids)
    said = [one for one, own in zip(ids, mask, strict=True) if own]
    assert server.ask("POST", "/detokenize", {"tokens": said}).json["prompt"] == "yes<|im_end|>"
    first = rendered["spans"][0]
    assert (first["message"], first["start"]) == (0, 0)
    assert first["end"] > SLOTS
    assert [one for one in ids[first["start"] : first["end"]] if one == PAD] == [PAD] * SLOTS


def test_derender_does_without_the_pictures(server: Server, url: str) -> None:
    request = {"messages": [{"role": "user", "content": [image("http://127.0.0.1:9/never"), text("?")]}]}
    words = server.ask("POST", "/tokenize", {"prompt": "a cat"}).json["tokens"]
    choice = {"index": 0, "token_ids": [*words, 151645], "finish_reason": "stop"}
    rendered = ask(server, image(url), text("?"))
    for more in ({}, {"prompt_token_ids": rendered["token_ids"]}):
        body = {
            "model": "m",
            "generate_response": {"request_id": "r", "choices": [choice]},
            "chat_request": request,
            **more,
        }
        answer = server.ask("POST", CHAT + "/derender", body)
        assert answer.status == 200, answer.body
        assert answer.json["choices"][0]["message"]["content"] == "a cat"


# ---------------------------------------------------------------------------------------------- what is refused


def refused(server: Server, *content: Json, **more: Any) -> dict[str, Any]:
    answer = server.ask("POST", CHAT + "/render", {"messages": [{"role": "user", "content": list(content)}], **more})
    assert answer.status == 400, answer.body[:300]
    return answer.error


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (image("http://169.254.169.254/x"), "not public"),
        (image("file:///etc/hostname"), "allowed-local-media-path"),
        (image("http://[::ffff:127.0.0.1]/x"), "not public"),
        (image("data:image/png;base64,AAAA"), "no image"),
        (image("data:image/png;base64,?"), "base64"),
        (image("data:image/png,abc"), "base64"),
        (image("data:"), "data URL"),
        (image("hello"), "https, http or data"),
        (image(""), "URL"),
        (image(url_of(false_png(40_000, 40_000))), "40000 x 40000 pixels"),
        (image(url_of(false_png(64, 64))), "damaged or cut short"),
        (image(url_of(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml")), "no image"),
        (image(url_of(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image/eps")), "no image"),
        ({"type": "image_url", "image_url": {"url": 5}}, "URL"),
        ({"type": "image_url", "image_url": {}}, "names no media"),
        ({"type": "image_url", "image_url": None, "uuid": ""}, "uuid"),
        ({"type": "input_image", "file_id": "file-1"}, "stored files"),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "not served"),
    ],
)
def test_what_is_no_picture_is_refused_by_its_place(part: Json, words: str, server: Server) -> None:
    """C30 a, c, e among them."""
    error = refused(server, text("see"), part)
    assert words in error["message"]
    assert error["param"].startswith("messages.0.content.1")


def test_a_cut_file_is_refused(server: Server) -> None:
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP"):
        whole = file_of(picture(64, 64), kind)
        assert ask(server, image(url_of(whole)))["features"]
        message = refused(server, image(url_of(whole[: len(whole) // 2])))["message"]
        assert "damaged" in message or "no image" in message


def test_a_huge_picture_costs_no_memory_and_no_log_line(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """C30 e: some megabytes that claim to be 40000 x 40000."""
    url = url_of(false_png(40_000, 40_000, extra=4_000_000))
    for _ in range(4):
        refused(server, image(url))
    process = psutil.Process()
    before = process.memory_info().rss
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            assert "pixels" in refused(server, image(url))["message"]
    assert process.memory_info().rss - before < 50 << 20
    assert url[100:160] not in caplog.text


def test_eight_megabytes_pass_with_default_settings(server: Server) -> None:
    """C30 f."""
    noise = picture(1500, 1400).effect_spread(40)
    data = file_of(noise, "BMP")
    assert 8_000_000 < len(url_of(data)) + 200 < 8_600_000
    assert ask(server, image(url_of(data)))["features"]


def test_limits_of_the_operator(serve: Serve, url: str) -> None:
    server = serve(limit_per_prompt={"image": 1}, max_bytes=100_000, max_image_pixels=250_000, max_items=3)
    assert "At most 1 image(s)" in refused(server, image(url), image(url))["message"]
    assert "at most 3 are allowed" in refused(server, *[image(url)] * 4)["message"]
    assert "100000 bytes" in refused(server, image(url_of(bytes(200_000))))["message"]
    assert "pixels" in refused(server, image(data_url(picture(600, 600), "JPEG")))["message"]


def test_arguments_of_processors_only_from_whom_is_trusted(serve: Serve, server: Server, url: str) -> None:
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        assert refused(server, image(url), **{name: {"a": 1}})["param"] == name
    trusting = serve(trust_request_kwargs=True)
    plain = ask(trusting, image(url))
    smaller = ask(
        trusting, image(url), mm_processor_kwargs={"size": {"shortest_edge": 3136, "longest_edge": 28 * 28 * 16}}
    )
    assert smaller["token_ids"].count(PAD) == 16
    assert smaller["features"]["mm_hashes"] != plain["features"]["mm_hashes"]
    assert "no argument 'nonsense'" in refused(trusting, image(url), mm_processor_kwargs={"nonsense": 1})["message"]
    io_kwargs = {"image": {"rgba_background_color": [0, 0, 999]}}
    assert "rgba_background_color" in refused(trusting, image(url), media_io_kwargs=io_kwargs)["message"]
    assert "cannot be prepared" in refused(trusting, image(url), mm_processor_kwargs={"size": {"x": 1}})["message"]
    operator = serve(processor_kwargs={"size": {"shortest_edge": 3136, "longest_edge": 28 * 28 * 16}})
    assert ask(operator, image(url))["token_ids"].count(PAD) == 16


def test_media_beyond_the_context_are_refused_before_all_are_prepared(server: Server, url: str) -> None:
    error = refused(server, *[image(data_url(picture(448, 448, seed=i), "JPEG")) for i in range(70)])
    assert error["param"] == "input_tokens" or "maximum context length" in error["message"]


def test_a_cut_prompt_with_media_is_an_error(server: Server, url: str) -> None:
    assert "cannot be cut" in refused(server, image(url), truncate_prompt_tokens=20)["message"]


def test_models_say_what_they_do_not_take(
    serve: Serve, server: Server, tiny_model: Callable[..., Path], url: str
) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    assert "m takes no audio input" in refused(server, sound)["message"]
    blind = serve(model=tiny_model("qwen3"))
    assert refused(blind, image(url))["message"] == "m is not a multimodal model"


def test_a_server_tells_which_media_it_takes(server: Server) -> None:
    told = server.ask("GET", "/server_info").json["media"]
    assert sorted([*told["kinds"], *told["missing"]]) == ["image", "video"]
    assert told["mm_payloads"] == ["tensors", "source", "none"]


def test_the_coupled_routes_take_pictures(serve: Serve, url: str) -> None:
    """With the engine that repeats its prompt: it got as many slots as the rendered prompt has."""
    server = serve(Mode.STANDARD)
    content = [text("hi"), image(url)]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 3}
    for stream in (False, True):
        answer = server.ask("POST", CHAT, {**body, "stream": stream})
        assert answer.status == 200, answer.body
    count = server.ask("POST", "/tokenize", body).json["count"]
    usage = server.ask("POST", CHAT, body).json["usage"]
    assert usage["prompt_tokens"] == count > SLOTS
    blocks = [{"type": "image", "source": {"type": "url", "url": url}}]
    messages = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": blocks}]}
    assert server.ask("POST", "/v1/messages", messages).status == 200
    parts = [{"type": "input_image", "image_url": url}]
    responses = server.ask("POST", "/v1/responses", {"input": [{"role": "user", "content": parts}]})
    assert responses.status == 200
    follow = {"input": "and now?", "previous_response_id": responses.json["id"]}
    assert server.ask("POST", "/v1/responses", follow).status == 200


STRING_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] + '\\n' + m['content'] }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize("interleaved", [False, True])
def test_templates_that_see_text_alone_get_placeholders_in_it(interleaved: bool, vision_model: Path, url: str) -> None:
    media = MediaOptions(interleave_strings=interleaved)
    config = ModeConfig(
        Mode.RENDER_ONLY, model=str(vision_model), chat_template=STRING_TEMPLATE, workers=1, media=media
    )
    with serving(make_app(config)) as server:
        rendered = ask(server, text("one <|image_pad|>"), image(url), text("two"))
        ids = [one for one in rendered["token_ids"] if one != PAD]
        shown = server.ask("POST", "/detokenize", {"tokens": ids}).json["prompt"]
        choice = {"index": 0, "token_ids": [151645], "finish_reason": "stop"}
        request = {"messages": [{"role": "user", "content": [image(url), text("?")]}]}
        body = {
            "model": config.served_model_names[0],
            "generate_response": {"choices": [choice]},
            "chat_request": request,
        }
        assert server.ask("POST", CHAT + "/derender", body).status == 200
    assert rendered["token_ids"].count(PAD) == SLOTS
    picture_text = "<|vision_start|><|vision_end|>"
    words = f"one <|image_pad|>\n{picture_text}\ntwo" if interleaved else f"{picture_text}\none <|image_pad|>\ntwo"
    assert shown == f"<|im_start|>user\n{words}<|im_end|>\n"


def test_fewer_or_more_placeholders_than_pictures_are_refused(vision_model: Path, url: str) -> None:
    blind = "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}"
    double = "{% for m in messages %}{% for p in m['content'] %}<|image_pad|>x<|image_pad|>{% endfor %}{% endfor %}"
    for template, words in ((blind, "no placeholder for 1 of 1"), (double, "Found more '<|image_pad|>'")):
        config = ModeConfig(Mode.RENDER_ONLY, model=str(vision_model), chat_template=template, workers=1)
        with serving(make_app(config)) as server:
            assert words in refused(server, image(url))["message"]
