"""Runs one step on the device: lays the batch out, calls the model, samples. Knows tensors, no requests queue and no event loop."""

from __future__ import annotations

from collections.abc import Sequence as ReadOnly

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from scaleout.core import TokenLogprob
from scaleout.errors import ConfigError
from scaleout.generate.attention import PagedAttention, Plan, Span
from scaleout.generate.logprobs import describe_prompt
from scaleout.generate.sampler import Sampler
from scaleout.generate.scheduler import Slice
from scaleout.generate.sequence import Sampled
from scaleout.generate.weights import close_model


class ModelRunner:
    """`blocks` blocks of KV cache per layer are allocated here."""

    def __init__(
        self,
        model: PreTrainedModel,
        attention: PagedAttention,
        blocks: int,
        device: torch.device,
        dtype: torch.dtype,
        sampler: Sampler,
    ) -> None:
        self.model, self.attention, self.device, self.sampler = model, attention, device, sampler
        attention.caches = {
            layer: (
                zeros((blocks, attention.block_size, shape.kv_heads, shape.key_dim), dtype, device),
                zeros((blocks, attention.block_size, shape.kv_heads, shape.value_dim), dtype, device),
            )
            for layer, shape in attention.shapes.items()
        }

    @torch.inference_mode()
    def run(self, batch: ReadOnly[Slice]) -> list[Sampled]:
        wanted = [self._wanted_rows(work) for work in batch]
        logits = self._forward(batch, wanted)
        last: list[int] = []
        row = 0
        for work, rows in zip(batch, wanted, strict=True):
            end = row + len(rows)
            if work.sequence.wants_prompt_logprobs:
                self._note_prompt_logprobs(work, logits[row:end])
            if work.samples:
                last.append(end - 1)
            row = end
        if not last:
            return []
        rows_to_sample = logits if len(last) == len(logits) else logits[last]
        return self.sampler.sample(rows_to_sample, [work.sequence for work in batch if work.samples])

    def alive(self) -> bool:
        try:
            return bool(torch.ones(1, device=self.device).item() == 1)
        except RuntimeError:
            return False

    def close(self) -> None:
        self.attention.caches.clear()
        close_model(self.model)

    def _forward(self, batch: ReadOnly[Slice], wanted: ReadOnly[range]) -> Tensor:
        """Logits of the wanted tokens, [rows, vocab]."""
        ids: list[int] = []
        positions: list[np.ndarray] = []
        slots: list[np.ndarray] = []
        keep: list[int] = []
        spans: list[Span] = []
        size = self.attention.block_size
        for work, rows in zip(batch, wanted, strict=True):
            start, end = work.start, work.start + work.count
            offset = len(ids)
            ids += work.sequence.tokens[start:end]
            where = np.arange(start, end)
            table = np.asarray(work.sequence.blocks, dtype=np.int64)
            positions.append(where)
            slots.append(table[where // size] * size + where % size)
            keep += range(offset + rows.start - start, offset + rows.stop - start)
            spans.append(Span(offset, work.count, end, self._to_device(table[: -(-end // size)])))
        self.attention.plan = Plan(self._to_device(np.concatenate(slots)), spans)
        output = self.model(
            input_ids=self._to_device(np.asarray(ids))[None],
            position_ids=self._to_device(np.concatenate(positions))[None],
            use_cache=False,
            logits_to_keep=self._to_device(np.asarray(keep, dtype=np.int64)),
        )
        logits: Tensor = output.logits[0]
        return logits

    def _to_device(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self.device, non_blocking=True)

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


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A zeroed tensor. On the CPU its pages cost nothing until they are written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    width = torch.empty((), dtype=dtype).element_size()
    lazy = np.zeros(int(np.prod(shape)), dtype={2: np.int16, 4: np.int32}[width])
    return torch.from_numpy(lazy).view(dtype).view(shape)
