"""Record what the installed transformers does with tokenizer classes, as data: `scaleout/tokenizer/recorded.json`.

usage: python tests/tokenizer/record_transformers.py        (writes the file)

The server never imports transformers; these facts let it build the same tokenizers. `test_recorded.py` compares the file with the
installed release.
"""

from __future__ import annotations

import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken, processors
from transformers import CONFIG_MAPPING, PreTrainedTokenizerBase, PythonBackend, TokenizersBackend
from transformers.integrations.gguf import gguf_tokenizer_mapping
from transformers.models.auto import tokenization_auto

OUT = Path(__file__).resolve().parents[2] / "scaleout" / "tokenizer" / "recorded.json"

REBUILT = (
    "CohereTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
    "GemmaTokenizer",
    "LlamaTokenizer",
    "Qwen2Tokenizer",
    "Qwen3_5Tokenizer",
)
"""Classes that take vocabulary and merges from a folder and bring their own pipeline; every one a text generation family."""

FLAGS = ("add_prefix_space", "legacy")
"""Keys of tokenizer_config.json that change a pipeline."""


def class_names() -> list[str]:
    """Names of all tokenizer classes that differ from the plain one, which loads tokenizer.json as it stands."""
    names = {name for name in tokenization_auto.TOKENIZER_MAPPING_NAMES.values() if name}
    names |= {name for name in dir(transformers) if name.endswith(("Tokenizer", "TokenizerFast"))}
    own = set()
    for name in names:
        found = tokenization_auto.tokenizer_class_from_name(name)
        if not isinstance(found, type) or not issubclass(found, PreTrainedTokenizerBase):
            continue
        plain = found in (TokenizersBackend, PythonBackend) or (
            issubclass(found, TokenizersBackend) and "__init__" not in found.__dict__
        )
        if not plain:
            own.add(name.removesuffix("Fast"))
    return sorted(own)


def pipeline(tokenizer_class: type, flags: dict[str, Any]) -> dict[str, Any]:
    """The parts of one class's pipeline, as tokenizer.json spells them."""
    built = json.loads(tokenizer_class(vocab={"a": 0}, merges=[], **flags).backend_tokenizer.to_str())
    model = {key: value for key, value in built["model"].items() if key not in ("vocab", "merges", "type", "dropout")}
    return {part: built[part] for part in ("normalizer", "pre_tokenizer", "decoder")} | {"model": model}


def record_class(name: str) -> dict[str, Any]:
    """Default special tokens and the pipeline for every combination of flags."""
    found = tokenization_auto.tokenizer_class_from_name(name)
    parameters = inspect.signature(found.__init__).parameters
    defaults = {
        key: p.default for key, p in parameters.items() if key.endswith("_token") and isinstance(p.default, str)
    }
    pipelines: list[dict[str, Any]] = []
    variants = {}
    for values in itertools.product((None, False, True), repeat=len(FLAGS)):
        built = pipeline(found, {key: value for key, value in zip(FLAGS, values, strict=True) if value is not None})
        if built not in pipelines:
            pipelines.append(built)
        variants[json.dumps(values, separators=(",", ":"))] = pipelines.index(built)
    return {
        "special_tokens": defaults,
        "pipelines": pipelines,
        "variants": variants,
        "keeps_post_processor": keeps_post_processor(found),
        "flags_extra_tokens": flags_extra_tokens(found),
    }


def keeps_post_processor(tokenizer_class: type) -> bool:
    """Does the post-processor of the folder's tokenizer.json survive?"""
    given = processors.TemplateProcessing(single="$A z", special_tokens=[("z", 1)])
    kept = tokenizer_class(vocab={"a": 0, "z": 1}, merges=[], post_processor=given).backend_tokenizer.post_processor
    return json.loads(kept.__getstate__()) == json.loads(given.__getstate__())


def flags_extra_tokens(tokenizer_class: type) -> bool:
    """Does a token that the folder adds as ordinary become special by being named in extra_special_tokens?"""
    ordinary = AddedToken("z", special=False)
    options = {"added_tokens_decoder": {1: ordinary}, "extra_special_tokens": ["z"]}
    tokenizer = tokenizer_class(vocab={"a": 0, "z": 1}, merges=[], **options)
    return bool(tokenizer.added_tokens_decoder[1].special)


def config_defaults() -> dict[str, list[int | None]]:
    """Per model type: the text config's default max_position_embeddings and vocab_size, for config files that leave them out."""
    found = {}
    for model_type in sorted(CONFIG_MAPPING.keys()):
        try:
            text = CONFIG_MAPPING[model_type]().get_text_config()
        except Exception as error:  # a few classes cannot be made without arguments or optional packages
            print("no defaults for", model_type, type(error).__name__)
            continue
        sizes = [getattr(text, "max_position_embeddings", None), getattr(text, "vocab_size", None)]
        if all(isinstance(size, int) for size in sizes):
            found[model_type] = sizes
    return found


def record() -> dict[str, Any]:
    return {
        "transformers": transformers.__version__,
        "flags": FLAGS,
        "classes": {name: record_class(name) for name in REBUILT},
        "other_classes": [name for name in class_names() if name not in REBUILT],
        "model_types": {
            model_type: name.removesuffix("Fast")
            for model_type, name in sorted(tokenization_auto.TOKENIZER_MAPPING_NAMES.items())
            if name
        },
        "wrong_class_in_folder": sorted(tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS),
        "plain_by_name": list(tokenization_auto.MODEL_IDS_TO_TOKENIZERS_BACKEND),
        "gguf_splits": dict(gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS),
        "config_defaults": config_defaults(),
    }


if __name__ == "__main__":
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in record().items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print("wrote", OUT)
