"""Names of the reference peer's parsers for which there is no format here, each with what is known of its grammar."""

from __future__ import annotations

from collections.abc import Mapping

_OWN_TAGS = "tags of its own, whose rules are not documented"

REFUSED: Mapping[str, str] = {
    "cohere_command4": "read by a library of the vendor's; cohere_command3 reads the blocks that are documented",
    "deepseek_v41": "DSML tags spelled unlike those of deepseek_v32 and deepseek_v4",
    "dots": "invoke tags as in minimax_m2 in a wrapper of its own, whose rules are not documented",
    "gigachat3": "calls in messages of their own, whose rules are not documented",
    "hy_v3": "key and value tags whose spelling depends on the vocabulary",
    "hy_v4": "key and value tags whose spelling depends on the vocabulary",
    "inkling": "messages of its own, whose rules are not documented",
    "k2_horizon": "typed key and value tags of its own, whose rules are not documented",
    "kimi_k3": "channels of its own, whose rules are not documented",
    "minicpm5": "function and param tags with attributes and CDATA, whose rules are not documented",
    "minimax_m2_append_think": "it leaves thoughts in the content; minimax_m2 takes them out",
    "minimax_m3": _OWN_TAGS,
    "muse_glimmer": "messages with recipients and tags of its own, whose rules are not documented",
    "plamo3": _OWN_TAGS,
}
"""To guess a grammar would give wrong answers silently; a server that is asked for one of these does not start."""

REFUSED_TOOLS: Mapping[str, str] = {"mimo": "the tags of qwen3_coder with values verbatim and untyped"}
"""Names that are known as reasoning parsers, but not for calls."""
