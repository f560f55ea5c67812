"""The page of all formats says what the formats and their tests say."""

from __future__ import annotations

import pytest

from tests.formats_matrix import FILE, build
from tests.parsers.recorded import families


@pytest.mark.skipif(not families(), reason="the recorded answers of ../shared/parity are absent")
def test_the_page_is_up_to_date() -> None:
    assert FILE.read_text() == build(), "run python -m tests.formats_matrix"
