"""Fetch a model's small files from the Hugging Face hub: tokenizer, templates and configs, never a weight."""

from __future__ import annotations

import re
from pathlib import Path

from scaleout.errors import ConfigError

SMALL_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.tiktoken",
    "tiktoken.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*",
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
"""Patterns of the files that a server without weights can need."""

UNSMALL_FILES = ("*.safetensors", "*.bin", "*.gguf", "*.pt", "*.onnx")

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")


def is_hub_id(name: str) -> bool:
    """Can `name` be a repository: "organisation/name", or one word for the old ones?"""
    return bool(_ID.fullmatch(name)) and ".." not in name and "--" not in name and len(name) <= 96


def fetch_model_files(repository: str, revision: str | None, token: str | None) -> Path:
    """The local folder with the repository's small files, fetched where the hub's cache lacks them.

    `HF_HUB_OFFLINE`, `HF_HOME`, `HF_ENDPOINT` and stored tokens work as everywhere; `token` overrules the stored one. Raises
    ConfigError that says what was asked for and why it could not be had.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = f"{repository!r}" + (f" at revision {revision!r}" if revision else "")
    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            token=token,
            allow_patterns=list(SMALL_FILES),
            ignore_patterns=list(UNSMALL_FILES),
        )
    except GatedRepoError:
        reason = "access to it must be granted first; pass a token that has access (HF_TOKEN)"
    except RepositoryNotFoundError:
        reason = "the hub has no such repository, or a private one that needs a token (HF_TOKEN)"
    except RevisionNotFoundError:
        reason = "the repository has no such revision"
    except LocalEntryNotFoundError:
        reason = "it is not in the local cache, and the hub is offline or cannot be reached"
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    else:
        return Path(folder)
    raise ConfigError(f"The model {at} is no local folder and cannot be fetched from the Hugging Face hub: {reason}.")
