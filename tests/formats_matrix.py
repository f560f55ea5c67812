"""Writes docs/formats.md from the formats and from the tests that run on them: `python -m tests.formats_matrix`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from attrs import frozen

from scaleout import parsers
from scaleout.dialects import DIALECTS
from scaleout.parsers import FORMATS, Format
from scaleout.parsers.constraint import shape_of
from scaleout.parsers.peer_names import REFUSED, REFUSED_TOOLS
from tests.parsers.answers import parse, tools_of
from tests.parsers.recorded import families, format_of, pieces_of, prompt_of, records
from tests.parsers.strategies import spellings

FILE = Path(__file__).resolve().parent.parent / "docs" / "formats.md"

LAW_MODULES = (
    "tests.parsers.test_laws",
    "tests.parsers.test_recorded_parsers",
    "tests.parsers.test_linear_time",
    "tests.derender.test_recorded_answers",
    "tests.test_demanded_calls",
)
IN_DIALECTS = "tests.test_formats_in_dialects"

HEAD = """# Output formats

Written by `python -m tests.formats_matrix` from the formats and from the tests that run on them; a test holds it up to date.

A format says how one model family writes thoughts and calls. `--tool-call-parser` and `--reasoning-parser` take any of the names
below, each for its half; two names may be of two formats. Without them the model's template and vocabulary decide: "by itself" says
which formats are recognised that way. A format whose tokens the vocabulary lacks refuses to start. Once the server is ready, the
model's own template tries the format: `/server_info` shows under `self_test` what came of it.
"""


@frozen
class Law:
    """A test that runs on formats by name, in `variants` of them."""

    module: str
    name: str
    says: str
    variants: dict[str, int]


def laws() -> list[Law]:
    """Every law, with the formats that its test is parametrised with."""
    found = []
    for name in LAW_MODULES:
        module = import_module(name)
        for test in tests_of(module):
            variants: dict[str, int] = {}
            for one in parametrised(test):
                base = base_of(one)
                if base:
                    variants[base] = variants.get(base, 0) + 1
            if variants:
                says = (test.__doc__ or test.__name__.removeprefix("test_").replace("_", " ")).strip().splitlines()[0]
                found.append(Law(name.replace(".", "/"), test.__name__, says.rstrip("."), variants))
    return found


def tests_of(module: ModuleType) -> list[Any]:
    return [value for name, value in vars(module).items() if name.startswith("test_") and callable(value)]


def parametrised(test: Callable[..., Any]) -> list[str]:
    """The names of formats that a test is run with, once for each of its cases."""
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize" and mark.args[0] in ("name", "family"):
            return [str(value) for value in mark.args[1]]
    return []


def base_of(variant: str) -> str | None:
    """The format of "hermes, spelled", "think+hermes" or "hf, tags"."""
    name = variant.partition(", ")[0].rpartition("+")[2]
    return name if name in FORMATS or name == "hf" else None


def dialects_of(family: str) -> list[str]:
    """The dialects in which a family's recorded answers are read by the official clients."""
    module = import_module(IN_DIALECTS)
    return [dialect.NAME for dialect in module.PARSED] if family in families() else []


def recorded(family: str) -> tuple[int, int]:
    """How many recorded answers there are, and how many come out as they should, whole and token by token."""
    from tests.parsers.test_recorded_parsers import comparable

    format, right = format_of(family), 0
    for record in records(family):
        state = parsers.begin(format, prompt_of(record), tools=tools_of(record))
        pieces = pieces_of(record)
        ways = [parse(format, state, [pieces]), parse(format, state, [[piece] for piece in pieces])]
        right += all(comparable(one.message()) == comparable(record["expected"]) for one in ways)
    return len(records(family)), right


def names_of(half: str) -> dict[str, list[str]]:
    """For each format the names by which a flag finds that half of it, its own name first."""
    found: dict[str, list[str]] = {}
    aliases = {alias for f in FORMATS.values() for alias in (f.name, *f.tool_parsers, *f.reasoning_parsers)}
    for alias in sorted(aliases):
        try:
            chosen = parsers.find_format(alias, None) if half == "calls" else parsers.find_format(None, alias)
        except ValueError:
            continue
        assert chosen is not None
        name = chosen.name.partition("/")[0]
        found.setdefault(name, []).append(alias)
    return {name: sorted(given, key=lambda alias: (alias != name, alias)) for name, given in found.items()}


# ---------------------------------------------------------------------------------------------- tables


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell or "–" for cell in line) + " |" for line in lines) + "\n"


def code(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" if "`" not in value else f"`` {value} ``" for value in map(escaped, values))


def escaped(text: str) -> str:
    return text.replace("\n", "⏎").replace("|", "\\|")


def about(format: Format) -> str:
    module = import_module(f"{parsers.formats.__name__}.{format.name}")  # type: ignore[attr-defined]
    text = escaped(re.sub(r"\s+", " ", module.__doc__ or "").strip().rstrip("."))
    return text if format.otherwise is None else f"{text}. Without its tokens: {format.otherwise.name}"


def thoughts(format: Format) -> str:
    if format.thought is None:
        return ""
    if format.calls is None or format.start:
        return "yes"
    return "yes; a call ends one" if format.thought.ends_at_call else "yes; a call in one is thought"


def arguments(format: Format) -> str:
    if format.calls is None:
        return ""
    return "typed by the schema" if format.types else "as the model writes them"


def demanded(format: Format) -> str:
    """Whether a request may demand calls of an engine, and how free ones are shaped."""
    shape = shape_of(format)
    if shape is None:
        return "" if format.calls is None else "no"
    return "yes" if shape.trigger else "yes; free calls are not shaped"


def name_table() -> str:
    calls, reasoning = names_of("calls"), names_of("thought")
    rows = [
        [
            f"**{name}**",
            about(format),
            code(calls.get(name, ())),
            code(reasoning.get(name, ())),
            "yes" if format.signs else "",
            thoughts(format),
            arguments(format),
            demanded(format),
        ]
        for name, format in FORMATS.items()
    ]
    own = "Whatever the checkpoint's `response_template` says"
    rows.append(["**hf**", own, "`hf`", "`hf`", "where no other is", "", "", "no: a 400 that names the format"])
    heads = [
        "format",
        "how it is written",
        "tool call parsers",
        "reasoning parsers",
        "by itself",
        "thoughts",
        "arguments",
        "required, named",
    ]
    return table(heads, rows)


def peer_table() -> str:
    """The peer's names that are no format's own: what they stand for here, or why they are refused."""
    rows = []
    for half, title in (("calls", "tool call parser"), ("thought", "reasoning parser")):
        rows += [
            [f"`{alias}`", title, f"**{name}**"]
            for name, aliases in names_of(half).items()
            for alias in aliases
            if alias != name
        ]
    refused = [(name, "both", why) for name, why in REFUSED.items()]
    refused += [(name, "tool call parser", why) for name, why in REFUSED_TOOLS.items()]
    rows += [[f"`{name}`", half, f"refused: {why}"] for name, half, why in refused]
    return table(["name", "half", "here"], sorted(rows))


def marker_table() -> str:
    rows = []
    for name, format in FORMATS.items():
        tokens = {*format.tokens, *format.end_tokens, *format.turn}
        optional = [token for token in format.tokens if token not in format.required]
        spelled = [one for one in spellings(format) if one not in tokens and not one.isspace()]
        rows.append([f"**{name}**", code(format.required), code(optional), code(spelled), code(format.end_tokens)])
    return table(
        ["format", "needs the tokens", "takes as tokens if there are any", "spelled out", "ends, never shown"], rows
    )


def law_table(found: Sequence[Law]) -> str:
    rows = []
    for name in (*FORMATS, "hf"):
        cells = [str(law.variants.get(name, "")) if law.variants.get(name, 0) != 1 else "✓" for law in found]
        rows.append([f"**{name}**", *cells])
    return table(["format", *(f"L{n}" for n in range(1, len(found) + 1))], rows)


def dialect_table() -> str:
    total = all_right = 0
    rows = []
    for name in FORMATS:
        lines, right = recorded(name) if name in families() else (0, 0)
        total, all_right = total + lines, all_right + right
        shown = dialects_of(name)
        cells = ["✓" if dialect.NAME in shown else "" for dialect in DIALECTS if dialect.NAME != "completions"]
        rows.append([f"**{name}**", f"{right} of {lines}" if lines else "", *cells])
    rows.append(["all", f"{all_right} of {total}", *[""] * (len(DIALECTS) - 1)])
    heads = [dialect.NAME for dialect in DIALECTS if dialect.NAME != "completions"]
    return table(["format", "recorded answers", *heads], rows)


def build() -> str:
    """The whole page. Needs the recorded answers."""
    found = laws()
    listed = "\n".join(f"* **L{n}** {law.says} (`{law.module}.py`, `{law.name}`)" for n, law in enumerate(found, 1))
    return f"""{HEAD}
{name_table()}
"required, named": `tool_choice` of these kinds holds the engine to calls in the family's own words. Free calls are shaped too where a
tool is strict or only one call is wanted, if the family marks where calls begin.

Where a family writes ids with its calls they are kept; all other calls get ids that depend on the answer's id, the choice and the
call alone. Completions are never parsed.

## Names of the peer

{peer_table()}
A refused name ends the start with its reason: to guess a grammar would give wrong answers silently.

## Markers

A marker that is a token counts only as that token: a model that spells it out means the text. Markers inside JSON strings are text.

{marker_table()}
## Laws

{listed}

✓: holds by a test on that format; a number: on so many variants of it (spelled markers, another format's thoughts, several templates).

{law_table(found)}
## Recorded answers and dialects

Recorded answers are read whole and token by token, in the words of the reference. In each dialect a choice of them is streamed, and the
official client's own code joins the stream to the whole answer.

{dialect_table()}"""


def main() -> None:
    if not families():
        raise SystemExit("the recorded answers of ../shared/parity are absent")
    FILE.write_text(build())


if __name__ == "__main__":
    main()
