"""Whether an engine has this server's model: names, sizes, special ids, and what both tokenizers make of one text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from attrs import frozen

from scaleout.generate.remote.dialect import Facts


@frozen
class Own:
    """This server's model, for comparison. None: not known here either."""

    names: Sequence[str]
    vocab_size: int
    eos_token_ids: Sequence[int]
    special_ids: frozenset[int] | None = None
    fingerprint: str | None = None
    probe_ids: Sequence[int] | None = None


def compare(facts: Facts, own: Own) -> tuple[list[str], list[str]]:
    """What differs, each as a sentence that names it; and the names of what could not be compared."""
    differences: list[str] = []
    unknown: list[str] = []

    def check(what: str, told: object, here: object, differs: bool, shown: str) -> None:
        if told is None or here is None or here == 0:
            unknown.append(what)
        elif differs:
            differences.append(shown)

    check(
        "model name",
        facts.models or facts.roots or None,
        own.names or None,
        not share_a_name((*facts.models, *facts.roots), own.names),
        f"model name: it serves {', '.join(map(repr, dict.fromkeys((*facts.models, *facts.roots))))}, not "
        f"{' or '.join(map(repr, own.names))}; see --engine-model",
    )
    check(
        "vocabulary size",
        facts.vocab_size,
        own.vocab_size,
        facts.vocab_size != own.vocab_size,
        f"vocabulary size: {facts.vocab_size} there, {own.vocab_size} here",
    )
    check(
        "ends of text",
        facts.eos_token_ids,
        own.eos_token_ids or None,
        set(facts.eos_token_ids or ()) != set(own.eos_token_ids),
        f"ends of text: {shorten(facts.eos_token_ids)} there, {shorten(own.eos_token_ids)} here",
    )
    check(
        "special ids",
        facts.special_ids,
        own.special_ids,
        frozenset(facts.special_ids or ()) != own.special_ids,
        f"special ids: {shorten(set(facts.special_ids or ()) ^ (own.special_ids or set()))} are special on one side only",
    )
    if facts.fingerprint is not None and facts.fingerprint == own.fingerprint:
        return differences, unknown
    check(
        "tokenizer",
        facts.probe_ids,
        own.probe_ids,
        list(facts.probe_ids or ()) != list(own.probe_ids or ()),
        f"tokenizer: the same text is {len(facts.probe_ids or ())} ids there and {len(own.probe_ids or ())} others here",
    )
    return differences, unknown


def share_a_name(theirs: Iterable[str], ours: Iterable[str]) -> bool:
    """Whether both mean one model: the same name, the same last part of a path, or a file of weights named after it."""
    mine = {last_part(name) for name in ours}
    for name in theirs:
        part = last_part(name)
        if part in mine or (
            name.lower().endswith(".gguf") and any(part.startswith((f"{own}.", f"{own}-")) for own in mine)
        ):
            return True
    return False


def last_part(name: str) -> str:
    return PurePath(name.rstrip("/")).name.lower().removesuffix(".gguf")


def shorten(ids: Iterable[int] | None) -> str:
    listed = sorted(ids or ())
    return ", ".join(map(str, listed[:8])) + (" …" if len(listed) > 8 else "")
