"""Paged attention on a CPU by compiled loops: tokens that decode read blocks where they lie; prompts as in `gather_kernel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from scaleout.generate.attention import Geometry, LayerShape, Look, Stretch, slots_of
from scaleout.generate.compiled.loops import Backward, Glance, Loops
from scaleout.generate.gather_kernel import ROWS, Space, open_caches, read_closed, store
from scaleout.generate.gather_plan import PromptSpan, prompt_spans


class LoopKernel:
    """`caches` as those of `GatherKernel`. Blocks of a multiple of four tokens."""

    def __init__(self, shapes: Mapping[int, LayerShape], geometry: Geometry, loops: Loops) -> None:
        self.geometry, self.loops = geometry, loops
        self.caches = open_caches(shapes, geometry)
        self.slots = torch.zeros(0, dtype=torch.int64)
        self._key_space, self._value_space = Space(), Space()
        self._glances: dict[int, Glance] = {}
        self._back = Backward.of((), ())
        self._spans: Sequence[PromptSpan] = ()
        self._padding = 0

    def prepare(self, stretches: Sequence[Stretch], padding: int = 0) -> None:
        self.slots = torch.from_numpy(slots_of(stretches, self.geometry, padding))
        self._padding = padding
        alone = [stretch for stretch in stretches if stretch.alone]
        self._back = Backward.of([stretch.blocks for stretch in alone], [stretch.start + 1 for stretch in alone])
        self._spans = prompt_spans(stretches, self.geometry)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, look: Look) -> Tensor:
        keys, values = self.caches[layer]
        store(keys, values, self.slots, key, value)
        return self.look(layer, (query * look.scale).to(keys.dtype).contiguous(), look)

    def look(self, layer: int, query: Tensor, look: Look) -> Tensor:
        """`query` [heads, tokens, dim], scaled; the step's keys and values are in the cache → [tokens, heads, value_dim]."""
        keys, values = self.caches[layer]
        glance = self._glances.get(layer)
        if glance is None:
            glance = self._glances[layer] = Glance.of(len(query), look.window, look.softcap, look.sinks)
        out = query.new_empty(query.shape[1], len(query), values.shape[3])
        if len(self._back.lengths):
            self.loops.look_back(self._back, query, (keys, values), glance, out)
        for span in self._spans:
            first, rows = span.view(len(keys), None if span.closed else look.window)
            found, told = self._key_space.gather(keys, rows), self._value_space.gather(values, rows)
            asked, answer = query[:, span.start : span.end], out[span.start : span.end]
            if span.closed:
                read_closed(asked, found, told, span.length, span.closed, look, answer)
            else:
                self._read(asked, found, told, span.length - first, glance, answer)
        if self._padding:
            out[len(out) - self._padding :] = 0
        return out

    def _read(self, query: Tensor, keys: Tensor, values: Tensor, length: int, glance: Glance, out: Tensor) -> None:
        """`query` [heads, rows, dim], the last of `length` tokens; `keys`, `values` [kv_heads, tokens, dim], with room behind → `out`."""
        heads, count, _ = query.shape
        kv_heads = len(keys)
        for start in range(0, count, ROWS):
            end = min(start + ROWS, count)
            last = length - count + end
            first = max(0, last - (end - start) - glance.window + 1) if glance.window else 0
            asked = query[:, start:end].reshape(kv_heads, -1, query.shape[2])
            scores = torch.bmm(asked, keys[:, first:last].contiguous().transpose(1, 2))
            shares = self.loops.weigh(scores.view(heads, end - start, last - first), glance)
            seen = torch.bmm(scores, values[:, first:last])
            self.loops.hand_out(seen.view(heads, end - start, -1), shares, out[start:end])

    def close(self) -> None:
        self.caches.clear()
