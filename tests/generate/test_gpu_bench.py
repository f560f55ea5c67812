"""The GPU benchmark runs from end to end where there is no GPU, so that it is ready where there is one."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from bench.gpu_engine import Limits, main

pytestmark = pytest.mark.engine


def test_it_measures_every_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--tiny", "--batches", "1,2", "--without-transformers"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["prefill_tok_s"] > 0
    assert [entry["batch"] for entry in told["decode"]] == [1, 2]
    for entry in told["decode"]:
        assert entry["decode_tok_s"] > 0
        assert 0 < entry["share"] < 1


def test_the_share_counts_weights_once_and_each_sequence() -> None:
    """192 tokens of 10 bytes each are read for a sequence in the middle of its answer."""
    limits = Limits(weights=1_000_000, per_token=10, bandwidth=1e9)
    assert limits.share(1, 100) == pytest.approx((1_000_000 + 1_920) * 100 / 1e9)
    assert limits.share(4, 400) == pytest.approx((1_000_000 + 4 * 1_920) * 100 / 1e9)
