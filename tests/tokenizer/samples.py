"""Names of the families that tests go through, and texts on which tokenizers like to differ."""

from __future__ import annotations

FAMILIES = ("smollm2", "qwen3", "llama3_1", "llama2", "deepseek_v3", "gemma3", "gptoss")

TEXTS = (
    "Hello, world!",
    " leading and trailing spaces  ",
    "",
    " ",
    "\n\n  a\tb\r\n\r\n",
    "Ünïcödé 日本語 한국어 עברית 🙂👨‍👩‍👧 ✓ ﬁ e\u0301",
    "12345 1,000.50 １２３ 0x1F",
    "don't I'LL we've they’re",
    "def f(x):\n    return {'a': [1, 2, 3], \"b\": None}\n",
    "a \u00a0nbsp \u3000wide\u2028line \x00\x01\x7f",
    "<s> x </s> <unk> <mask> [PAD] <pad> <0x0A>",
    "<|im_start|>user\nhi<|im_end|>\n<think>\nok</think>\n<tool_call>{}</tool_call>",
    "<bos>hey<eos><end_of_turn>\n<b>x</b>  <i> ▁▁ a ▁",
    "<｜begin▁of▁sentence｜>x<｜User｜><|eot_id|><|return|>",
)
