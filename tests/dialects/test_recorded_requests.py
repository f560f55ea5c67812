"""Requests that a reference server answered: what it took, the dialects take; what they refuse, it refused too."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scaleout.core import ChatRequest
from scaleout.dialects import DIALECTS
from scaleout.errors import RequestError
from scaleout.render.sampling import MAX_STOPS if False else DIALECTS  # noqa
