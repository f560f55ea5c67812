"""A second view of a vocabulary in which special tokens are ordinary text."""

from __future__ import annotations

import tokenizers


def split_special_twin(library: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer with the same vocabulary that does not recognise special tokens in text; other added tokens it does.

    It shares the vocabulary's memory with `library`: the switch itself is a setting of one tokenizer, so flipping it back and forth would
    race with other threads.
    """
    twin = tokenizers.Tokenizer(library.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        value = getattr(library, part)
        if value is not None:
            setattr(twin, part, value)
    added = library.get_added_tokens_decoder()
    twin.add_tokens([token for _, token in sorted(added.items())])
    if twin.get_added_tokens_decoder() != added:  # ids with gaps: only a full copy keeps them
        twin = tokenizers.Tokenizer.from_str(library.to_str())
    twin.encode_special_tokens = True
    return twin
