"""Runs one step on the device: lays the batch out, calls the model, samples. Knows tensors, no requests queue and no event loop."""

from __future__ import annotations

from collections.abc import Sequence as ReadOnly

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from scaleout.core import TokenLogprob
from scaleout.errors import ConfigError
from scaleout.generate.attention import PagedAttention
from scaleout.generate.logprobs import describe_prompt
from scaleout.generate.plan import DecodeGroup, Geometry, Plan, PromptSpan, split_into_groups
from scaleout.generate.sampler import Sampler
from scaleout.generate.scheduler import Slice
from scaleout.generate.sequence import Sampled, Sequence
from scaleout.generate.weights import close_model


class ModelRunner:
    """The KV cache of all layers is allocated here."""

    def __init__(self, model: PreTrainedModel, attention: PagedAttention, sampler: Sampler, geometry: Geometry) -> None:
        self.model, self.attention, self.sampler, self.geometry = model, attention, sampler, geometry
        self.device = geometry.device
        attention.caches = {
            layer: (zeros(geometry, shape.kv_heads, shape.key_dim), zeros(geometry, shape.kv_heads, shape.value_dim))
            for layer, shape in attention.shapes.items()
        }

    @torch.inference_mode()
    def run(self, batch: ReadOnly[Slice]) -> list[Sampled]:
        laid_out = sorted(batch, key=lambda work: (work.count > 1, work.start))
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
        self.attention.caches.clear()
        close_model(self.model)

    def _forward(self, batch: ReadOnly[Slice], wanted: ReadOnly[range]) -> Tensor:
        """Logits of the wanted tokens, [rows, vocab]."""
        ids = [token for work in batch for token in work.sequence.tokens[work.start : work.start + work.count]]
        positions = np.concatenate([np.arange(work.start, work.start + work.count) for work in batch])
        offsets = np.cumsum([0, *(work.count for work in batch)])
        keep = [
            int(offset) + place - work.start
            for work, rows, offset in zip(batch, wanted, offsets, strict=False)
            for place in rows
        ]
        self.attention.plan = self._plan(batch, offsets)
        output = self.model(
            input_ids=self._to_device(np.asarray(ids))[None],
            position_ids=self._to_device(positions)[None],
            use_cache=False,
            logits_to_keep=self._to_device(np.asarray(keep, dtype=np.int64)),
        )
        logits: Tensor = output.logits[0]
        return logits

    def _plan(self, batch: ReadOnly[Slice], offsets: np.ndarray) -> Plan:
        """`batch` has the decoding slices first, the shortest in front."""
        size = self.geometry.block_size
        decoding = [work for work in batch if work.count == 1]
        groups = [
            DecodeGroup(
                start=start,
                end=end,
                lengths=[work.start + 1 for work in decoding[start:end]],
                tables=[work.sequence.blocks for work in decoding[start:end]],
                geometry=self.geometry,
            )
            for start, end in split_into_groups([work.start // size + 1 for work in decoding])
        ]
        spans = [
            PromptSpan(
                int(offset), int(offset) + work.count, work.start + work.count, work.sequence.blocks, self.geometry
            )
            for work, offset in zip(batch, offsets, strict=False)
            if work.count > 1
        ]
        slots = []
        for work in batch:
            where = np.arange(work.start, work.start + work.count)
            slots.append(np.asarray(work.sequence.blocks)[where // size] * size + where % size)
        return Plan(self._to_device(np.concatenate(slots)), groups, spans)

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


def zeros(geometry: Geometry, kv_heads: int, dim: int) -> Tensor:
    """A zeroed cache, [kv_heads, blocks, block_size, dim]. On the CPU its pages cost nothing until they are written."""
    shape = (kv_heads, geometry.blocks, geometry.block_size, dim)
    if geometry.device.type != "cpu":
        return torch.zeros(shape, dtype=geometry.dtype, device=geometry.device)
    lazy = np.zeros(int(np.prod(shape)), dtype={2: np.int16, 4: np.int32}[geometry.dtype.itemsize])
    return torch.from_numpy(lazy).view(geometry.dtype).view(shape)
