"""Paged attention on a CPU by compiled loops, which read blocks where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from scaleout.generate.attention import Geometry, LayerShape, Look, Stretch, slots_of
from scaleout.generate.compiled.looks import Backward, Glance, Spans
from scaleout.generate.compiled.loops import Loops
from scaleout.generate.compiled.plain import Plain
from scaleout.generate.compiled.tiles import Tiles
from scaleout.generate.gather_kernel import Space, open_caches, read_closed, store
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
        self._open: dict[int | None, Spans | None] = {}
        self._padding = 0

    def prepare(self, stretches: Sequence[Stretch], padding: int = 0) -> None:
        self.slots = torch.from_numpy(slots_of(stretches, self.geometry, padding))
        self._padding = padding
        alone = [stretch for stretch in stretches if stretch.alone]
        self._back = Backward.of([stretch.blocks for stretch in alone], [stretch.start + 1 for stretch in alone])
        self._spans = prompt_spans(stretches, self.geometry)
        self._open.clear()

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
        eyes = self.loops.eyes
        if len(self._back.lengths):
            eyes.look_back(self._back, query, (keys, values), glance, out)
        spans = self._spans
        if isinstance(eyes, Tiles):
            if (open_spans := self._open_spans(look.window)) is not None:
                eyes.read_prompts(open_spans, query, (keys, values), glance, out)
            spans = [span for span in spans if span.closed]
        if spans or self._padding:
            self.loops.team.flush()  # what follows are operations of torch
        for span in spans:
            first, rows = span.view(len(keys), None if span.closed else look.window)
            found, told = self._key_space.gather(keys, rows), self._value_space.gather(values, rows)
            asked, answer = query[:, span.start : span.end], out[span.start : span.end]
            if span.closed:
                read_closed(asked, found, told, span.length, span.closed, look, answer)
            elif isinstance(eyes, Plain):
                eyes.read_prompt(asked, found, told, span.length - first, glance, answer)
        if self._padding:
            out[len(out) - self._padding :] = 0
        return out

    def _open_spans(self, window: int | None) -> Spans | None:
        """Those in which no token sees what is behind it; None if there are none."""
        if window not in self._open:
            given = [(one.start, one.end, one.length, one.table) for one in self._spans if not one.closed]
            self._open[window] = Spans.of(given, window, self.geometry.block_size) if given else None
        return self._open[window]

    def close(self) -> None:
        self.caches.clear()
