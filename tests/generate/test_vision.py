"""Pictures in prompts: the engine's greedy ids are those of transformers' own generation, however the work is cut and shared."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from typing import Any

import pytest
import torch
from asking import opened
from attrs import evolve
from media_files import film
from serving import until
from vision_asking import COUNT, ROOMY, Case, all_answers, answer, answers, answers_as_transformers, case
from vision_models import Seeing, changed, first_item, known_by_hash, tensors_of, view

from scaleout.core import Features, Field, GenerateRequest, MediaFeature, SamplingParams
from scaleout.core.features import Batched, Flat, Tensor
from scaleout.errors import BadRequest, NotSupported
from tests.render.mm_models import FAMILIES

pytestmark = pytest.mark.engine

NAMES = [name for name in FAMILIES if FAMILIES[name].image is not None]


@pytest.fixture(scope="session")
def cases(seeing: Callable[[str], Seeing]) -> Callable[[str], Mapping[str, Case]]:
    """Of a family: one picture, two pictures, other pictures behind the same ids, and text alone."""

    @cache
    def find(name: str) -> Mapping[str, Case]:
        model = seeing(name)
        one, two, other = view(1), view(2, 60, 140), view(3)
        prompts: dict[str, Sequence[Any]] = {
            "one": ("Look: ", one, " what is it?"),
            "two": ("Look: ", one, " and ", two, " differ?"),
            "other": ("Look: ", other, " what is it?"),
            "text": ("Say something of cities and their rivers.",),
        }
        return {key: case(model, parts) for key, parts in prompts.items()}

    return find


# ---------------------------------------------------------------------------------------------- every family


@pytest.mark.parametrize("name", NAMES)
async def test_greedy_ids_are_those_of_transformers(
    name: str, seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    """Alone; beside text; from the cache, where equal ids with another picture in them find only what stands before it."""
    async with opened(seeing(name).files, block_size=4, **ROOMY) as engine:
        tensors = seeing(name).tensors(view(1), view(2, 60, 140))
        await answers_as_transformers(engine, seeing(name), cases(name), tensors)


@pytest.mark.parametrize("name", NAMES)
async def test_small_steps_change_nothing(
    name: str, seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    every = list(cases(name).values())
    options = {"max_num_batched_tokens": 7, "block_size": 4, "enable_prefix_caching": False}
    async with opened(seeing(name).files, **options, **ROOMY) as engine:
        assert await all_answers(engine, every) == [case.expected for case in every]


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3", "llava"])
async def test_preempted_requests_see_again(
    name: str, seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    every = list(cases(name).values())
    longest = max(len(case.request.token_ids) for case in every) + COUNT
    files = evolve(seeing(name).files, max_model_len=longest)
    text = seeing(name).model.config.get_text_config()
    per_token = text.num_hidden_layers * 2 * text.num_key_value_heads * 8 * 4
    choices = 12  # of one prompt, so that all of them grow at once, beyond what there is
    async with opened(files, dtype="float32", block_size=4, kv_cache_memory=per_token * (longest + 16)) as engine:
        together = await answers(engine, cases(name)["one"].request, n=choices, temperature=1.0, top_k=1)
        assert [one.token_ids for one in together] == [cases(name)["one"].expected] * choices
        assert await all_answers(engine, every) == [case.expected for case in every]
        stats = engine.stats()
        assert stats.preemptions > 0
        assert stats.blocks_free == stats.blocks_total


# ---------------------------------------------------------------------------------------------- sharing


async def test_choices_share_their_picture(
    seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    request = cases("qwen2_vl")["two"].request
    async with opened(seeing("qwen2_vl").files, block_size=4, **ROOMY) as engine:
        together = await answers(engine, request, n=3, temperature=1.0, seed=7)
        alone = [await answer(engine, request, temperature=1.0, seed=7 + i) for i in range(3)]
        assert [one.token_ids for one in together] == [one.token_ids for one in alone]


async def test_a_hash_alone_finds_what_was_seen(
    seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    """Also where positions need the picture's grid; but not from another salt, and not for other places than it fills."""
    two = cases("qwen2_vl")["two"]
    by_hash = evolve(two.request, features=known_by_hash(two.request.features))
    async with opened(seeing("qwen2_vl").files, enable_prefix_caching=False, **ROOMY) as engine:
        with pytest.raises(BadRequest, match=r"features: item \S+ is not in the cache; send its data"):
            await answer(engine, by_hash)
        assert (await answer(engine, two.request)).token_ids == two.expected
        before = engine.stats()
        assert (before.encoder_cache_hits, before.encoder_cache_misses) == (0, 3)  # the hash, then two pictures
        assert before.encoder_cache_bytes > sum(item.length for item in two.request.features.items) * 32 * 4  # type: ignore[union-attr]
        assert (await answer(engine, by_hash)).token_ids == two.expected
        assert engine.stats().encoder_cache_hits == 2
        with pytest.raises(BadRequest, match="not in the cache"):
            await answer(engine, evolve(by_hash, cache_salt="other"))
        first = first_item(by_hash)
        shorter = list(by_hash.token_ids)
        shorter[first.offset + first.length - 1] = shorter[0]
        with pytest.raises(BadRequest, match="embeddings, and token_ids has"):
            await answer(engine, evolve(by_hash, token_ids=shorter))


async def test_a_false_hash_deceives_only_its_sender(
    seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    """Somebody sends another picture under the hash of ours: whoever sends data gets what they sent."""
    one, other = cases("llava")["one"], cases("llava")["other"]
    false = evolve(other.request, features=changed(other.request.features, hash=first_item(one.request).hash))
    async with opened(seeing("llava").files, block_size=4, **ROOMY) as engine:
        assert (await answer(engine, false)).token_ids == other.expected
        assert (await answer(engine, one.request)).token_ids == one.expected


async def test_a_small_cache_forgets(
    seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    """Nothing but room is lost when embeddings are not kept; one who waits holds its own."""
    one = cases("llava")["one"]
    async with opened(seeing("llava").files, encoder_cache_memory=0, enable_prefix_caching=False, **ROOMY) as engine:
        assert await all_answers(engine, [one] * 4) == [one.expected] * 4
        assert engine.stats().encoder_cache_bytes == engine.stats().encoder_cache_hits == 0
        with pytest.raises(BadRequest, match="not in the cache"):
            await answer(engine, evolve(one.request, features=known_by_hash(one.request.features)))


async def test_an_aborted_picture_leaves_nothing(
    seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    one = cases("llava")["one"]
    endless = evolve(
        one.request, sampling_params=SamplingParams(temperature=0, max_tokens=400, ignore_eos=True), stream=True
    )
    async with opened(seeing("llava").files, **ROOMY) as engine:
        async with aclosing(engine.generate(endless)) as deltas:
            await anext(deltas)
        gone = [asyncio.ensure_future(anext(engine.generate(endless))) for _ in range(3)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        assert (await answer(engine, one.request)).token_ids == one.expected
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_free) == (0, 0, stats.blocks_total)
        assert not [thread for thread in threading.enumerate() if thread.name == "turns"]


@pytest.mark.parametrize("name", ["smolvlm", "qwen2_vl"])
async def test_text_goes_on_between_two_layers(
    name: str, seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    """On a CPU a look at one crop takes as long as many steps, and one at a picture without crops as long as hundreds."""
    two, text = cases(name)["two"].request, cases(name)["text"].request
    assert two.features is not None
    fields = [item.fields or {} for item in two.features.items]
    crops = sum(one["num_patches"].data.data[0] if "num_patches" in one else 1 for one in fields)  # type: ignore[union-attr]
    order: list[str] = []

    async def read(kind: str, request: GenerateRequest, count: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        async for delta in engine.generate(evolve(request, sampling_params=params, stream=True)):
            order.extend([kind] * len(delta.token_ids))

    async with opened(seeing(name).files, **ROOMY) as engine:
        writing = asyncio.ensure_future(read("text", text, 200))
        await until(lambda: bool(order))
        started = len(order)
        await read("picture", two, 1)
        await writing
    layers = 2
    assert order[started:].index("picture") >= crops * layers


# ---------------------------------------------------------------------------------------------- films


async def test_films_have_positions_in_time(seeing: Callable[[str], Seeing]) -> None:
    model = seeing("qwen2_vl")
    prompt = model.render("Watch this").token_ids
    start, slot, end = (
        model.front.tokenizer.id_of(f"<|{name}|>") for name in ("vision_start", "video_pad", "vision_end")
    )
    film = [start, *[slot] * 8, end]
    ids = [*prompt[:4], *film, *prompt[4:]]
    generator = torch.Generator().manual_seed(0)
    patches, grid = torch.randn(32, 1176, generator=generator), torch.tensor([[2, 4, 4]])
    fields = {
        "pixel_values_videos": Field(
            Tensor("float32", tuple(patches.shape), patches.numpy().tobytes()), Flat([(0, 32, None)])
        ),
        "video_grid_thw": Field(Tensor("int64", (3,), grid[0].numpy().tobytes()), Batched()),
    }
    features = Features([MediaFeature("video", "film", 5, 8, fields)])
    expected = model.expected(ids, {"pixel_values_videos": patches, "video_grid_thw": grid}, COUNT, [(5, 13, 2)])
    async with opened(model.files, **ROOMY) as engine:
        assert (await answer(engine, GenerateRequest("r", ids, features=features))).token_ids == expected


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "glm4v", "glm46v"])
async def test_films_beside_pictures(name: str, seeing: Callable[[str], Seeing]) -> None:
    """Of families that tell the time of each step in words, and of one that tells it in positions."""
    pytest.importorskip("av")
    model = seeing(name)
    # transformers' own GLM takes the slots of films for slots of pictures, and refuses both in one prompt.
    beside = () if name.startswith("glm") else (view(1), " and ")
    request = model.render("See ", *beside, film(16, size=(112, 84)), film(8, size=(84, 112)), " now?")
    assert request.features is not None
    films = [item for item in request.features.items if item.modality == "video"]
    kinds = [(item.offset, item.offset + item.length, 2) for item in films]
    expected = model.expected(request.token_ids, tensors_of(request), COUNT, kinds)
    async with opened(model.files, block_size=4, **ROOMY) as engine:
        assert (await answer(engine, request)).token_ids == expected
        again = await answer(engine, request)
        assert again.token_ids == expected
        assert again.prompt is not None
        assert again.prompt.cached_tokens == (len(request.token_ids) - 1) // 4 * 4
    options = {"max_num_batched_tokens": 7, "block_size": 4, "enable_prefix_caching": False}
    async with opened(model.files, **options, **ROOMY) as engine:
        assert (await answer(engine, request)).token_ids == expected


# ---------------------------------------------------------------------------------------------- what is refused


def grid(*lengths: int) -> Field:
    return Field(Tensor("int64", (len(lengths),), b"".join(n.to_bytes(8, "little") for n in lengths)), Batched())


def pixels(*shape: int, value: bytes = b"\0\0\x80\x3f", dtype: str = "float32") -> Field:
    count = 1
    for length in shape:
        count *= length
    return Field(Tensor(dtype, shape, value * count), Batched())


def with_fields(request: GenerateRequest, **fields: Field | None) -> GenerateRequest:
    merged = {**(first_item(request).fields or {}), **fields}
    kept = {name: value for name, value in merged.items() if value is not None}
    return evolve(request, features=changed(request.features, fields=kept, hash="bad"))


async def test_bad_features_are_refused_and_hurt_nobody(
    seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    one = cases("qwen2_vl")["one"]
    request, item = one.request, first_item(one.request)
    slot = request.token_ids[item.offset]
    bad: list[tuple[GenerateRequest, str]] = [
        (evolve(request, features=changed(request.features, modality="audio")), "qwen2_vl takes no audio features"),
        (evolve(request, features=None), f"placeholder {slot} of image items .* times where features names no item"),
        (evolve(request, token_ids=[*request.token_ids, slot]), f"placeholder {slot} of image items 1 times"),
        (evolve(request, features=changed(request.features, offset=0, length=1)), "names no item"),
        (evolve(request, token_ids=[9 if one == slot else one for one in request.token_ids]), "has no placeholder"),
        (evolve(request, features=changed(request.features, offset=10_000)), "outside of token_ids"),
        (with_fields(request, pixel_values=None), "lacks the field pixel_values"),
        (with_fields(request, pixel_values=pixels(item.length * 4, 1176, value=b"a", dtype="uint8")), "floating-point"),
        (with_fields(request, image_grid_thw=None), "should be time, height and width"),
        (with_fields(request, image_grid_thw=grid(1, 2)), "should be time, height and width"),
        (with_fields(request, image_grid_thw=grid(1, 3, 3)), "should be time, height and width"),
        (with_fields(request, image_grid_thw=grid(1, 2**31, 2**31)), "does not fit"),
        (with_fields(request, pixel_values=pixels(4, 1176), image_grid_thw=grid(1, 2, 2)), "gives 1 embeddings"),
        (with_fields(request, pixel_values=pixels(item.length * 4, 3)), "tower cannot take"),
        (with_fields(request, pixel_values=pixels(item.length * 4, 1176, value=b"\0\0\xc0\x7f")), "not finite"),
    ]
    async with opened(seeing("qwen2_vl").files, **ROOMY) as engine:
        for wrong, words in bad:
            neighbour = asyncio.ensure_future(answer(engine, one.request))
            with pytest.raises(BadRequest, match=words):
                await answer(engine, wrong)
            assert (await neighbour).token_ids == one.expected
        elsewhere = evolve(request, features=changed(request.features, whole=False))
        with pytest.raises(NotSupported, match="ec_transfer_params"):
            await answer(engine, elsewhere)
        assert engine.stats().failed_steps == 0


SHAPES = [(3, 8, 8), (1, 3, 8, 8), (0, 3, 56, 56), (5,), (1, 1, 1, 3, 56, 56), (7, 3, 56, 56)]
"""The last is taken by LLaVA-OneVision, which cuts off what it does not need."""


@pytest.mark.parametrize("name", ["gemma3", "llava", "llava_onevision", "smolvlm", "mistral3"])
async def test_pictures_of_odd_shapes_are_refused(
    name: str, seeing: Callable[[str], Seeing], cases: Callable[[str], Mapping[str, Case]]
) -> None:
    one = cases(name)["one"]
    async with opened(seeing(name).files, **ROOMY) as engine:
        for shape in SHAPES[: -1 if name == "llava_onevision" else None]:
            with pytest.raises(BadRequest, match="features: "):
                await answer(engine, with_fields(one.request, pixel_values=pixels(*shape)))
        assert (await answer(engine, one.request)).token_ids == one.expected
        assert engine.stats().failed_steps == 0
