"""Read one small JSON file of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from scaleout.errors import ConfigError


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} when there is no such file. Raises ConfigError for anything that is no JSON object."""
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (orjson.JSONDecodeError, OSError) as error:
        raise ConfigError(f"{path.name} of the model cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path.name} of the model must hold a JSON object.")
    return value
