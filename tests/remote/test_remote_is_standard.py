"""A server that drives engines elsewhere answers byte for byte as one that has the engine inside, over every wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import evolve
from driving import OURS, WIRES, config_of, remote, run_engine, run_wire
from serving import Server, serving
from wishes import BY_NAME, WISHES, Wish, ask, by_choice, joined

from scaleout.app import make_app
from scaleout.config import EngineOptions, Mode
from scaleout.routes.keys import STAGES

ECHO = EngineOptions(backend="echo")
KINDS = (*OURS, *WIRES)
LACKS = {"generate": set(), "completions": set(), "llamacpp": {"n", "prompt logprobs"}}
"""What the echo engine, which tells choices apart by their number, cannot show over wires that know no numbers; and what a wire lacks."""

STREAMS_LACK = {"completions": {"prompt logprobs"}}
"""Whole answers alone carry these over this wire: a client's stream then has them in one piece."""
CASES = [(kind, wish) for kind in KINDS for wish in WISHES if not wish.needs & LACKS.get(kind, {"n"})]


@pytest.fixture(scope="module")
def standard(smollm2_folder: Path) -> Iterator[Server]:
    with serving(make_app(config_of(Mode.STANDARD, smollm2_folder, engine=ECHO))) as server:
        yield server


@pytest.fixture(scope="module")
def driving(smollm2_folder: Path) -> Iterator[Callable[[str], Server]]:
    """A render-only server over an echo engine, by the wire between them."""
    with ExitStack() as running:
        servers: dict[str, Server] = {}

        def get(kind: str) -> Server:
            if kind not in servers:
                engine = running.enter_context(run_engine(kind, smollm2_folder, ECHO))
                config = config_of(Mode.RENDER_ONLY, smollm2_folder, engine=remote(engine))
                servers[kind] = running.enter_context(serving(make_app(config)))
            return servers[kind]

        yield get


@pytest.mark.parametrize("kind", KINDS)
def test_the_wire_is_found_without_being_named(driving: Callable[[str], Server], kind: str) -> None:
    (engine,) = driving(kind).get("/engines").json["engines"]
    assert engine["state"] == "up"
    assert engine["dialect"] == kind.partition(" ")[0]
    assert engine["model"] == "m"


@pytest.mark.parametrize(("kind", "wish"), CASES, ids=lambda one: getattr(one, "name", one))
def test_whole_answers_are_equal(standard: Server, driving: Callable[[str], Server], kind: str, wish: Wish) -> None:
    assert ask(driving(kind), wish, stream=False) == ask(standard, wish, stream=False)


@pytest.mark.parametrize(
    ("kind", "wish"),
    [(k, w) for k, w in CASES if not w.needs & STREAMS_LACK.get(k, set())],
    ids=lambda one: getattr(one, "name", one),
)
def test_streams_are_equal(standard: Server, driving: Callable[[str], Server], kind: str, wish: Wish) -> None:
    assert by_choice(ask(driving(kind), wish, stream=True)) == by_choice(ask(standard, wish, stream=True))


ON_THE_MODEL = ("chat", "logprobs", "stop string", "three choices", "completion", "message", "response")


@pytest.fixture(scope="module")
def real(smollm2_folder: Path) -> Iterator[Server]:
    """The small model in float32, with every route. Prefix reuse is off: it would show in the usage of the second of two equal requests."""
    inside = EngineOptions(device="cpu", dtype="float32", max_num_seqs=8, enable_prefix_caching=False)
    with serving(make_app(config_of(Mode.STANDARD, smollm2_folder, scale_out=True, engine=inside))) as server:
        yield server


@pytest.fixture(scope="module")
def told(real: Server) -> Callable[[Wish, bool], list[str]]:
    """What the real model answers by itself, asked once for each wish."""
    answers: dict[tuple[str, bool], list[str]] = {}

    def ask_once(wish: Wish, stream: bool) -> list[str]:
        if (wish.name, stream) not in answers:
            answers[wish.name, stream] = ask(real, wish, stream)
        return answers[wish.name, stream]

    return ask_once


@pytest.mark.engine
@pytest.mark.parametrize("kind", KINDS)
def test_a_real_model_answers_alike(
    real: Server, told: Callable[[Wish, bool], list[str]], smollm2_folder: Path, kind: str
) -> None:
    with ExitStack() as running:
        engine = (
            real if kind in OURS else running.enter_context(run_wire(kind, smollm2_folder, real.app[STAGES].engine))
        )
        options = remote(engine, dialect=kind.partition(" ")[0])
        driving = running.enter_context(serving(make_app(config_of(Mode.RENDER_ONLY, smollm2_folder, engine=options))))
        for name in ON_THE_MODEL if kind == "generate" else ("chat", "three choices"):
            wish = BY_NAME[name]
            limit = "max_output_tokens" if "input" in wish.body else "max_tokens"
            wish = evolve(wish, body={**wish.body, limit: 6})
            assert ask(driving, wish, stream=False) == told(wish, False), name
            assert joined(ask(driving, wish, stream=True)) == joined(told(wish, True)), name
