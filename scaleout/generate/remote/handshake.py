"""Before an engine gets its first request: what it is, which wire it speaks, and whether it has this server's model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from attrs import frozen

from scaleout.codec import dumps
from scaleout.core import Json
from scaleout.generate.remote.comparison import Own, compare
from scaleout.generate.remote.completions_wire import CompletionsWire
from scaleout.generate.remote.dialect import EngineDialect, Facts
from scaleout.generate.remote.faults import Fault, Unreachable
from scaleout.generate.remote.generate_wire import GenerateWire
from scaleout.generate.remote.link import Link, Said
from scaleout.generate.remote.llamacpp_wire import LlamacppWire
from scaleout.generate.remote.sglang_wire import SglangWire

DIALECTS: Mapping[str, type[EngineDialect]] = {
    "generate": GenerateWire,
    "completions": CompletionsWire,
    "sglang": SglangWire,
    "llamacpp": LlamacppWire,
}
ABSENT = (403, 404, 405, 501)
"""vLLM answers 403 on routes that are switched off."""

PROBE = (
    "Hello, world! It's 10:45; don't you'll I'M\n\n\tdef f(x: int) -> dict:  # 3.14159\r\n"
    "Ünïcödé naïve ẞ ﬁ e\u0301 日本語 中文 한국어 العربية हिन्दी 🙂👍🏽 <b>&amp;</b> aaaaaaaaaaaaaaaa 1234567890"
)
"""The text by which two tokenizers are compared. It spells no special token of any model."""


class Refused(Exception):
    """An engine that must not be used; `str()` says why, without its name."""


@frozen
class Introduction:
    """What came of asking. `unknown`: what the engine did not tell, and so was not compared."""

    dialect: EngineDialect
    health_path: str
    facts: Facts
    differences: Sequence[str]
    unknown: Sequence[str]


async def introduce(link: Link, wanted: str, own: Own) -> Introduction:
    """Ask an engine what it is. Raises `Unreachable` where it is not there (yet), `Refused` where it cannot be used at all."""
    info = await _ask(link, "/server_info")
    ours = "mode" in info.object and "routes" in info.object
    if ours and info.object.get("state") == "loading":
        raise Unreachable("it is still loading its model")
    name = wanted if wanted != "auto" else await find_dialect(link, info.object if ours else None)
    facts = await gather_facts(link, name, info.object if ours else None)
    differences, unknown = compare(facts, own)
    # Ours says there when it wants no more work.
    return Introduction(DIALECTS[name](), "/ready" if ours else "/health", facts, differences, unknown)


async def _ask(link: Link, path: str, body: Json = None) -> Said:
    try:
        said = await (link.get(path) if body is None else link.post(path, dumps(body)))
    except Fault as fault:
        raise Unreachable(str(fault)) from fault
    if said.status == 401:
        raise Refused(f"it wants another key (401 on {path}); see --engine-api-key")
    if said.status in (429, 502, 503, 504):
        raise Unreachable(f"it is not ready ({said.status} on {path})")
    return said


async def find_dialect(link: Link, info: Mapping[str, Json] | None) -> str:
    """The best wire that an engine speaks. Empty bodies find out: a route that is there says what is missing, one that is not says 404."""
    if info is not None:
        routes = info.get("routes") or ()
        for name, path in (("generate", "/inference/v1/generate"), ("completions", "/v1/completions")):
            if f"POST {path}" in routes:
                return name
        raise Refused("it is a server without an engine: it has neither /inference/v1/generate nor /v1/completions")
    if (await _ask(link, "/inference/v1/generate", {})).status not in ABSENT:
        return "generate"
    for path in ("/model_info", "/get_model_info"):
        if "model_path" in (await _ask(link, path)).object:
            return "sglang"
    if "default_generation_settings" in (await _ask(link, "/props")).object:
        return "llamacpp"
    if (await _ask(link, "/v1/completions", {})).status not in ABSENT:
        return "completions"
    raise Refused(
        "it speaks none of the known wires: it has neither /inference/v1/generate, /generate, /completion nor /v1/completions"
    )


# ---------------------------------------------------------------------------------------------- facts


async def gather_facts(link: Link, dialect: str, info: Mapping[str, Json] | None) -> Facts:
    """`info` is what one of our own servers said about itself; None for others."""
    cards, probe_ids = await asyncio.gather(_cards(link), _probe(link, dialect))
    roots = [card["root"] for card in cards if isinstance(card.get("root"), str)]
    if dialect == "sglang":
        for path in ("/model_info", "/get_model_info"):
            root = (await _ask(link, path)).object.get("model_path")
            roots += [root] if isinstance(root, str) else []
    first = cards[0] if cards else {}
    meta = _object(first.get("meta"))
    facts = Facts(
        models=tuple(card["id"] for card in cards if isinstance(card.get("id"), str)),
        roots=tuple(dict.fromkeys(roots)),
        max_model_len=_count(first.get("max_model_len")) or _count(meta.get("n_ctx")),
        vocab_size=_count(meta.get("n_vocab")),
        probe_ids=probe_ids,
    )
    if info is None:
        return facts
    if not isinstance(info.get("tokenizer"), dict) and probe_ids is not None:
        # A tokens-only server loads its tokenizer for the first text that it sees, and has just seen one.
        info = (await _ask(link, "/server_info")).object
    return _with_own_words(facts, info)


def _with_own_words(facts: Facts, info: Mapping[str, Json]) -> Facts:
    tokenizer = _object(info.get("tokenizer"))
    return Facts(
        models=facts.models,
        roots=facts.roots,
        max_model_len=_count(info.get("max_model_len")) or facts.max_model_len,
        vocab_size=_count(info.get("vocab_size")),
        eos_token_ids=_ids(info.get("eos_token_ids")),
        special_ids=_ids(tokenizer.get("special_ids")),
        fingerprint=tokenizer.get("fingerprint"),
        probe_ids=facts.probe_ids,
        ours=True,
    )


async def _cards(link: Link) -> Sequence[Mapping[str, Json]]:
    data = (await _ask(link, "/v1/models")).object.get("data")
    return [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []


async def _probe(link: Link, dialect: str) -> Sequence[int] | None:
    """Ids of the probe text, from whichever route makes ids of text; None where none does."""
    if dialect == "llamacpp":
        said = await _ask(link, "/tokenize", {"content": PROBE, "add_special": False})
        return _ids(said.object.get("tokens"))
    said = await _ask(link, "/tokenize", {"prompt": PROBE, "add_special_tokens": False})
    if (ids := _ids(said.object.get("tokens"))) is not None:
        return ids
    # Servers without /tokenize may render completions, which for a bare text comes to the same.
    body = {"prompt": PROBE, "add_special_tokens": False, "max_tokens": 1}
    rendered = (await _ask(link, "/v1/completions/render", body)).body
    first = rendered[0] if isinstance(rendered, list) and rendered else None
    return _ids(first.get("token_ids")) if isinstance(first, dict) else None


def _ids(value: Json) -> list[int] | None:
    return value if isinstance(value, list) and value and set(map(type, value)) == {int} else None


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
