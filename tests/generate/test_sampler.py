"""Draws follow the distribution that a few plain lines of arithmetic give, and depend on nothing but the request itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.core import GenerateRequest, SamplingParams
from scaleout.generate import sampler as sampling
from scaleout.generate.sampler import Sampler, uniform
from scaleout.generate.sequence import Sequence

pytestmark = pytest.mark.engine

VOCAB = 24
DRAWS = 2000


def sequence(seed: int = 0, prompt: tuple[int, ...] = (1,), output: tuple[int, ...] = (), **params: Any) -> Sequence:
    request = GenerateRequest("r", prompt, sampling_params=SamplingParams(**params))
    stream: Any = None
    made = Sequence(request, 0, 0, stream, frozenset([2]), max_model_len=1000, seed=seed, salt="")
    made.tokens += output
    return made


def reference(
    logits: np.ndarray, prompt: tuple[int, ...], output: tuple[int, ...], params: dict[str, Any]
) -> np.ndarray:
    """Probabilities of one row, the slow and obvious way."""
    row = logits.astype(np.float64).copy()
    for id in set(prompt) | set(output):
        penalty = params.get("repetition_penalty", 1.0)
        row[id] = row[id] / penalty if row[id] > 0 else row[id] * penalty
    for id, count in Counter(output).items():
        row[id] -= count * params.get("frequency_penalty", 0.0) + params.get("presence_penalty", 0.0)
    row /= params["temperature"]
    probabilities = np.exp(row - row.max())
    probabilities /= probabilities.sum()
    probabilities[probabilities < params.get("min_p", 0.0) * probabilities.max()] = 0
    order = np.argsort(-probabilities, kind="stable")
    if params.get("top_k", 0) > 0:
        probabilities[order[params["top_k"] :]] = 0
    probabilities /= probabilities.sum()
    if params.get("top_p", 1.0) < 1:
        before = np.cumsum(probabilities[order]) - probabilities[order]
        probabilities[order[before >= params["top_p"]]] = 0
    return probabilities / probabilities.sum()


PARAMS = st.fixed_dictionaries(
    {"temperature": st.floats(0.2, 2.0)},
    optional={
        "top_k": st.integers(-1, VOCAB + 3),
        "top_p": st.floats(0.05, 1.0),
        "min_p": st.floats(0.0, 0.9),
        "repetition_penalty": st.floats(0.5, 2.0),
        "frequency_penalty": st.floats(-2.0, 2.0),
        "presence_penalty": st.floats(-2.0, 2.0),
    },
)
IDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6).map(tuple)


@settings(max_examples=20, derandomize=True)
@given(params=PARAMS, prompt=IDS, output=IDS, seed=st.integers(0, 1000))
def test_draws_follow_the_reference(
    params: dict[str, Any], prompt: tuple[int, ...], output: tuple[int, ...], seed: int
) -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    expected = reference(logits.numpy(), prompt, output, params)
    # Every row is the same request with another seed.
    rows = [sequence(seed * DRAWS + i, prompt, output, **params) for i in range(DRAWS)]
    drawn = Sampler().sample(logits.expand(DRAWS, VOCAB).clone(), rows)
    counts = np.bincount([one.token_id for one in drawn], minlength=VOCAB)
    assert not counts[expected < 1e-12].any(), "an id outside the cut was drawn"
    error = np.abs(counts / DRAWS - expected)
    # Five standard deviations, and a few draws for ids so rare that their count is nothing like normal.
    assert (error <= 5 * np.sqrt(expected * (1 - expected) / DRAWS) + 8 / DRAWS).all()


@settings(max_examples=40)
@given(data=st.data())
def test_company_changes_nothing(data: st.DataObject) -> None:
    vocab = 2 * sampling.SHORTLIST
    everyone = data.draw(st.lists(PARAMS, min_size=1, max_size=5))
    if data.draw(st.booleans()):
        everyone[0] = {**everyone[0], "top_k": sampling.SHORTLIST + 100}
    logits = torch.randn(len(everyone), vocab, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    together = Sampler().sample(logits.clone(), [sequence(i, **params) for i, params in enumerate(everyone)])
    alone = [
        Sampler().sample(logits[i : i + 1].clone(), [sequence(i, **params)])[0] for i, params in enumerate(everyone)
    ]
    assert together == alone


def test_the_short_list_is_as_good_as_the_whole_vocabulary() -> None:
    """A flat distribution needs the whole vocabulary for top_p, a steep one does not; both agree with the reference's cut."""
    vocab = 4 * sampling.SHORTLIST
    for scale, top_p in ((0.01, 0.95), (5.0, 0.9)):
        logits = torch.randn(vocab, generator=torch.Generator().manual_seed(1)) * scale
        expected = reference(logits.numpy(), (), (), {"temperature": 1.0, "top_p": top_p})
        rows = [sequence(i, top_p=top_p) for i in range(500)]
        drawn = [one.token_id for one in Sampler().sample(logits.expand(500, vocab).clone(), rows)]
        assert all(expected[id] > 0 for id in drawn)
        reached = len({id for id, share in enumerate(expected) if share > 0}) > sampling.SHORTLIST
        assert reached == (scale == 0.01)


def test_greedy_takes_the_best_and_ties_take_the_first() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [5.0, 1.0, 2.0]])
    rows = [sequence(temperature=0.0), sequence(temperature=1e-6)]
    assert [one.token_id for one in Sampler().sample(logits, rows)] == [1, 0]


def test_a_very_low_temperature_is_raised() -> None:
    logits = torch.tensor([[1.0, 1.001, -300.0]]).expand(2000, 3).clone()
    drawn = Counter(
        one.token_id for one in Sampler().sample(logits, [sequence(i, temperature=1e-4) for i in range(2000)])
    )
    assert drawn[0] / 2000 == pytest.approx(1 / (1 + np.exp(0.1)), abs=0.05), "0.01, at which the gap of 0.001 is 0.1"


def test_nothing_allowed_still_gives_an_id() -> None:
    logits = torch.full((2, 5), float("nan"))
    logits[1] = float("-inf")
    for params in ({"temperature": 0.0}, {}, {"top_p": 0.5}, {"top_k": 2}):
        for one in Sampler().sample(logits.clone(), [sequence(**params), sequence(**params)]):
            assert 0 <= one.token_id < 5


@settings(max_examples=50)
@given(st.integers(-(2**63), 2**63 - 1))
def test_uniform_numbers_are_uniform(seed: int) -> None:
    numbers = np.array([uniform(seed, place) for place in range(1000)] + [uniform(seed + i, 0) for i in range(1000)])
    assert ((numbers >= 0) & (numbers < 1)).all()
    for part in (numbers[:1000], numbers[1000:]):
        # Kolmogorov and Smirnov's distance; 0.08 has a chance of about one in a million.
        assert np.abs(np.sort(part) - np.arange(1000) / 1000).max() < 0.08
