"""Runs one step on the device: lays the batch out, calls the model, samples. Knows tensors, no requests queue and no event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as ReadOnly
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from scaleout.core import TokenLogprob
from scaleout.errors import ConfigError
from scaleout.generate.attention import Kernel, PagedAttention, Stretch
from scaleout.generate.cores import settle_threads
from scaleout.generate.decode_graphs import DecodeGraphs
from scaleout.generate.flash_kernel import to_device
from scaleout.generate.logprobs import describe_prompt
from scaleout.generate.media import Media
from scaleout.generate.sampler import Sampler
from scaleout.generate.scheduler import Slice
from scaleout.generate.sequence import Sampled, Sequence
from scaleout.generate.vision import Vision
from scaleout.generate.weights import close_model
from scaleout.tokenizer.memory import give_back_freed_memory

Pictures = tuple[int, Media, int, int]

TIDY_EVERY = 64
"""Steps. On a CPU, oneDNN's kernels for each new number of rows come to lie between a step's large tensors, and glibc keeps what is freed
around them. Giving it back takes 2 ms where there is nothing, 160 ms for a GB.
"""


class ModelRunner:
    """A model whose attention goes through `kernel`, and a sampler behind it.

    `rows` says how many tokens a step computes for so many that it has. `graphs` take steps that only decode. `narrowing` takes note
    of which tokens' logits are wanted.
    """

    graphs: DecodeGraphs | None = None
    vision: Vision | None = None
    narrowing: PagedAttention | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        kernel: Kernel,
        sampler: Sampler,
        device: torch.device,
        rows: Callable[[int], int] = int,
        threads: int | None = None,
    ) -> None:
        self.model, self.kernel, self.sampler, self.device = model, kernel, sampler, device
        self.rows, self.threads = rows, threads
        self._steps = 0

    def begin(self) -> None:
        """Number of processor threads: torch counts them per thread that calls it."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if self.device.type == "cpu":
            settle_threads()

    @torch.inference_mode()
    def run(self, batch: ReadOnly[Slice]) -> list[Sampled]:
        self._steps += 1
        if self.device.type == "cpu" and self._steps % TIDY_EVERY == 0:
            give_back_freed_memory()
        laid_out = sorted(batch, key=lambda work: (work.count > 1 or in_closed_run(work), work.start))
        wanted = [self._wanted_rows(work) for work in laid_out]
        logits = self._forward(laid_out, wanted)
        last: dict[Sequence, int] = {}
        row = 0
        for work, rows in zip(laid_out, wanted, strict=True):
            end = row + len(rows)
            if work.sequence.wants_prompt_logprobs:
                self._note_prompt_logprobs(work, logits[row:end])
            if work.samples:
                last[work.sequence] = end - 1
            row = end
        if not last:
            return []
        rows_to_sample = logits if len(last) == len(logits) else logits[list(last.values())]
        sampled = dict(zip(last, self.sampler.sample(rows_to_sample, list(last)), strict=True))
        return [sampled[work.sequence] for work in batch if work.samples]

    def alive(self) -> bool:
        try:
            return bool(torch.ones(1, device=self.device).item() == 1)
        except RuntimeError:
            return False

    def close(self) -> None:
        self.kernel.close()
        close_model(self.model)

    def _forward(self, batch: ReadOnly[Slice], wanted: ReadOnly[range]) -> Tensor:
        """Logits of the wanted tokens, [rows, vocab]."""
        ids = [token for work in batch for token in work.sequence.tokens[work.start : work.start + work.count]]
        stretches = [lay_out(work) for work in batch]
        bent = any(work.sequence.media is not None and work.sequence.media.positions is not None for work in batch)
        if self.graphs is not None and not bent and len(ids) == len(batch) == sum(map(len, wanted)):
            return self.graphs.run(ids, stretches)
        padding = self.rows(len(ids)) - len(ids)
        self.kernel.prepare(stretches, padding)
        ids += [0] * padding
        positions = np.concatenate([*(places(work, bent) for work in batch), np.zeros((3, padding), np.int64)], axis=1)
        offsets = np.cumsum([0, *(work.count for work in batch)])
        keep = [
            int(offset) + place - work.start
            for work, rows, offset in zip(batch, wanted, offsets, strict=False)
            for place in rows
        ]
        return self.compute(
            self._to_device(np.asarray(ids))[None],
            self._to_device(positions[:, None] if bent else positions[:1]),
            self._to_device(np.asarray(keep, dtype=np.int64)),
            [
                (int(offset), work.sequence.media, work.start, work.start + work.count)
                for work, offset in zip(batch, offsets, strict=False)
                if work.sequence.media is not None and work.start < work.sequence.prompt_len
            ],
        )

    def compute(
        self, ids: Tensor, positions: Tensor, keep: Tensor | int = 0, pictures: ReadOnly[Pictures] = ()
    ) -> Tensor:
        """`ids` int64 [1, tokens], `positions` the same or [3, 1, tokens] → logits [rows, vocab] of the tokens in `keep`; 0 is all.

        `pictures`: see `Vision.embed`.
        """
        inputs = {"input_ids": ids}
        if pictures and self.vision is not None:
            inputs = {"inputs_embeds": self.vision.embed(ids, pictures)}
        with self._narrowed(keep, ids.shape[1]) as (wanted, count):
            output = self.model(**inputs, position_ids=positions, use_cache=False, logits_to_keep=wanted)
        logits: Tensor = output.logits[0]
        return logits[:count]

    @contextmanager
    def _narrowed(self, keep: Tensor | int, tokens: int) -> Iterator[tuple[Tensor | int, int | None]]:
        """What the model is to keep of its last layer's output, and how many of the logits are wanted then."""
        if self.narrowing is None or isinstance(keep, int) or self.rows(len(keep)) >= tokens:
            yield keep, None
            return
        rows = self.rows(max(1, len(keep)))
        self.narrowing.kept = torch.nn.functional.pad(keep, (0, rows - len(keep)))
        try:
            yield 0, len(keep)
        finally:
            self.narrowing.kept = None

    def _to_device(self, numbers: np.ndarray) -> Tensor:
        return to_device(numbers, self.device)

    @staticmethod
    def _wanted_rows(work: Slice) -> range:
        """Token positions whose logits this slice needs: the last one, or all while prompt log probabilities are wanted."""
        end = work.start + work.count
        if work.sequence.wants_prompt_logprobs:
            return range(work.start, end)
        return range(end - 1 if work.samples else end, end)

    @staticmethod
    def _note_prompt_logprobs(work: Slice, logits: Tensor) -> None:
        """The logits of position p speak about token p + 1."""
        sequence = work.sequence
        found: list[dict[int, TokenLogprob] | None] = sequence.prompt_logprobs or []
        first = len(found) - 1
        last = min(work.start + work.count, sequence.prompt_len - 1)
        if first < last:
            actual = sequence.tokens[first + 1 : last + 1]
            rows = logits[first - work.start : last - work.start]
            found += describe_prompt(rows, actual, sequence.params.prompt_logprobs or 0)


def lay_out(work: Slice) -> Stretch:
    media = work.sequence.media
    closed = () if media is None else media.closed_within(work.start, work.start + work.count)
    return Stretch(work.start, work.count, work.sequence.blocks, closed)


def in_closed_run(work: Slice) -> bool:
    media = work.sequence.media
    return media is not None and bool(media.closed_within(work.start, work.start + work.count))


def places(work: Slice, bent: bool) -> np.ndarray:
    """Positions of a slice, int64 [3, count]; rows 2 and 3 only matter where `bent`."""
    count = np.arange(work.start, work.start + work.count)
    media = work.sequence.media
    if not bent or media is None or media.positions is None:
        return np.broadcast_to(count, (3, work.count))
    later = count[max(0, work.sequence.prompt_len - work.start) :] + media.delta
    return np.concatenate(
        [media.positions[:, work.start : work.start + work.count], np.broadcast_to(later, (3, len(later)))], axis=1
    )


PAGED_LAYERS = {"full_attention", "sliding_attention"}


def probe(model: PreTrainedModel, attention: PagedAttention, device: torch.device) -> None:
    """One token through the model, to learn each layer's KV shape. Raises ConfigError where paging would give wrong answers."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or PAGED_LAYERS) - PAGED_LAYERS
    if kinds:
        raise ConfigError(
            f"The torch engine cannot run {config.model_type!r}: its layers use {', '.join(sorted(kinds))}"
        )
    with torch.inference_mode():
        one = torch.zeros(1, 1, dtype=torch.int64, device=device)
        model(input_ids=one, position_ids=one, use_cache=False)
    layers = config.num_hidden_layers
    if set(attention.shapes) != set(range(layers)):
        raise ConfigError(
            f"The torch engine cannot run {config.model_type!r}: only {len(attention.shapes)} of its {layers} layers use "
            "attention that can be paged"
        )
