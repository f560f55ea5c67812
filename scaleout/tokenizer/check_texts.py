"""Texts on which two tokenizers that are not the same would show it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

PLAIN_TEXTS = (
    "",
    " ",
    "Hello, world! It's 10:45 o'clock; don't you'll we've I'M HE'S.",
    "  leading,  double   and trailing spaces   ",
    "\n\nlines\r\n\r\n\tand\ttabs \n \n",
    "def f(x: int) -> dict:\n    return {'a': [1, 2.50, -3e10], \"b\": None}  # comment\n",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}',
    "https://example.org/a_b/c-d?e=f&g=%20#h user@example.org 192.168.0.1 2024-01-31T23:59:59Z",
    "1234567890 3.14159 1,000,000 １２３ ²³ ½ Ⅷ ٣٤ १२",
    "Ünïcödé naïve façade Ærøskøbing ẞ ſ ﬁ ﬀ Ǆ İstanbul",
    "e\u0301 a\u0308 o\u0302\u0323 n\u0303 \u1100\u1161\u11a8 \u0958 \u212b \u2126 \uf900",
    "日本語のテキスト、漢字とカナ。中文字符测试！한국어 문장입니다.",
    "العربية نص עברית טקסט हिन्दी पाठ ไทย ข้อความ ქართული հայերեն Ελληνικά Русский",
    "🙂 👍🏽 👨‍👩‍👧‍👦 🇨🇭 ❤️ ☃ 𝒜𝓁𝓅𝒽𝒶 𐍈",
    "\u00a0nbsp \u3000ideographic \u2028line\u2029paragraph \u200bzero\u200d\ufeff \u00ad",
    "\x00\x01\x07\x1b[0m\x7f \x85",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 4,
    " " * 100 + "x" + "\n" * 50 + "\t" * 20,
    "!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`\"' ''' \"\"\" ... --- === *** ###",
    "CamelCaseWordsAndSNAKE_CASE_words mixedDigits123abc456DEF v1.2.3-rc.4+build",
    "<think>\nreasoning\n</think>\n\n<tool_call>\n{}\n</tool_call> <|im_start|>user <s> [INST] <0x0A> ▁▁ Ġ",
)

BLOCKS = (
    *((0x00, 0x20), (0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600), (0x600, 0x700)),
    *((0x900, 0xA00), (0xE00, 0xE80), (0x1100, 0x1200), (0x2000, 0x2100), (0x3040, 0x3100), (0x4E00, 0x9FFF)),
    *((0xAC00, 0xD7A3), (0xF900, 0xFB00), (0xFE00, 0xFE10), (0x1D400, 0x1D800), (0x1F300, 0x1FA00), (0x20000, 0x20100)),
)
"""Ranges of code points from which words are drawn: scripts, marks, symbols, controls."""

SEPARATORS = (" ", "", "  ", "\n", "\n\n", "\t", " \n", "'s ", "123 ", ". ", "\r\n", "\u3000", "\u00a0")

DRAWN_TEXTS = 120
MARKER_TEXTS = 24
MOST_MARKERS = 400
"""Of vocabularies with thousands of added tokens, so many are tried."""


def check_texts(added_tokens: Iterable[str], corpus: Iterable[str] = ()) -> Iterator[str]:
    """The built-in texts, drawn ones (the same at every start), texts full of the added tokens, and `corpus`."""
    draw = random.Random(20)
    yield from PLAIN_TEXTS
    for _ in range(DRAWN_TEXTS):
        yield "".join(_word(draw) + draw.choice(SEPARATORS) for _ in range(24))
    markers = list(added_tokens)
    if len(markers) > MOST_MARKERS:
        markers = draw.sample(markers, MOST_MARKERS)
    if markers:
        yield "".join(markers)
        yield " ".join(markers)
        for _ in range(MARKER_TEXTS):
            yield "".join(draw.choice(markers) + draw.choice((*SEPARATORS, _word(draw))) for _ in range(24))
    yield from corpus


def _word(draw: random.Random) -> str:
    first, last = draw.choice(BLOCKS)
    return "".join(chr(draw.randrange(first, last)) for _ in range(draw.randrange(1, 9)))
