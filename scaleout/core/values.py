"""What JSON holds, and lists of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

Json = Any
"""A value as `orjson` reads it: dict, list, str, int, float, bool or None."""

TokenIds = Annotated[Sequence[int], "token ids"]
"""Non-negative ids. A type of its own because the codec checks such lists at C speed, not item by item."""
