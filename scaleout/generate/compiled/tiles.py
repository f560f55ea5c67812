"""Products and attention of bfloat16 by tiles, on processors that have an instruction for them: see `tile`."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from attrs import define, field, frozen
from torch import Tensor

from scaleout.generate.compiled.look_back_tiles import compile_look_back_tiles
from scaleout.generate.compiled.looks import Backward, Glance, Spans
from scaleout.generate.compiled.multiply import GELU, GELU_TANH, RELU, SCRATCH, SWISH, compile_multiply
from scaleout.generate.compiled.read_prompt import compile_lay_out, compile_read_prompt
from scaleout.generate.compiled.room import grown
from scaleout.generate.compiled.team import Team
from scaleout.generate.compiled.tile import COLUMNS, PAIR_BYTES, ROWS


@frozen(eq=False)
class Panels:
    """Weights [columns, width] as oneDNN packs them, if they lie as `multiply` reads them: panels of 64 columns, of which two
    numbers of `width` lie side by side.
    """

    packed: Tensor
    columns: int
    width: int
    bias: Tensor | None
    address: int


ACTIVATIONS = {("swish", ""): SWISH, ("gelu", "none"): GELU, ("gelu", "tanh"): GELU_TANH, ("relu", ""): RELU}
"""By the names that torch gives them."""


@define(eq=False)
class Tiles:
    """See `Loops`. Of heads of an even number of dimensions."""

    team: Team
    multiplying: int
    laying: int
    reading: int
    looking: int
    _room: Tensor = field(factory=lambda: torch.empty(0))
    _weights: Tensor = field(factory=lambda: torch.empty(0))
    _panels: Tensor = field(factory=lambda: torch.empty(0))

    def panels(self, packed: Tensor, weight: Tensor, bias: Tensor | None) -> Panels | None:
        """`weight` [columns, width] as oneDNN `packed` it. None where that is not as `multiply` reads it."""
        columns, width = weight.shape
        if width % 2 or not lies_in_panels(packed, weight):
            return None
        return Panels(packed, columns, width, bias, torch.ops.mkldnn.data_ptr(packed))

    def multiply(
        self,
        rows: Tensor,
        panels: Panels,
        added: Tensor | None = None,
        activation: tuple[str, str] | None = None,
        second: Panels | None = None,
    ) -> Tensor:
        """`rows` [rows, width] times `panels`; where there is an `activation`, that of it times the same of `second`; plus `added`
        [rows, columns] → [rows, columns].
        """
        count, columns = len(rows), panels.columns
        out = rows.new_empty(count, columns)
        threads = torch.get_num_threads()
        self._room = grown(self._room, threads * SCRATCH, self.team)
        other = panels if second is None else second
        bias, other_bias, nothing = panels.bias, other.bias, (0, 0)
        length, address = nothing if bias is None else (columns, bias.data_ptr())
        other_length, other_address = nothing if other_bias is None else (columns, other_bias.data_ptr())
        more, more_address = nothing if added is None else (count, added.data_ptr())
        self.team.run(
            threads,
            *(
                self.multiplying,
                count,
                panels.width,
                columns,
                0 if activation is None else ACTIVATIONS[activation],
            ),
            *(length, other_length, more, rows.data_ptr(), panels.address, other.address, address, other_address),
            *(more_address, out.data_ptr(), self._room.data_ptr()),
        )
        return out

    def look_back(
        self, back: Backward, queries: Tensor, caches: tuple[Tensor, Tensor], glance: Glance, out: Tensor
    ) -> None:
        """The first rows of `queries` [heads, tokens, dim], scaled, at `caches` [kv_heads, blocks, block_size, dim] → `out`
        [rows, heads, dim], of at least as many rows.
        """
        heads, _, dim = queries.shape
        kv_heads, _, size, width = caches[1].shape
        columns = back.tables.shape[1]
        group = heads // kv_heads
        across = -(-columns * size // COLUMNS) * COLUMNS
        panel = max(dim // 2, COLUMNS // 2) * COLUMNS
        room, weights = group * (-(-width // COLUMNS) * COLUMNS + across) + panel, group * across
        threads = torch.get_num_threads()
        self._room, self._weights = (
            grown(self._room, threads * room, self.team),
            grown(self._weights, threads * weights // 2, self.team),
        )
        sizes, addresses = back.numbers(queries, caches, glance, out)
        mine = self._room.data_ptr(), self._weights.data_ptr()
        self.team.run(threads, self.looking, *sizes, room, weights, *addresses, *mine)

    def read_prompts(
        self, spans: Spans, queries: Tensor, caches: tuple[Tensor, Tensor], glance: Glance, out: Tensor
    ) -> None:
        """The rows `spans` of `queries` [heads, tokens, dim], scaled, at `caches` [kv_heads, blocks, block_size, dim], among them what
        these rows put there → the same rows of `out` [tokens, heads, dim].
        """
        keys, values = caches
        heads, count, dim = queries.shape
        kv_heads, blocks, size, width = values.shape
        threads, number, total = torch.get_num_threads(), len(spans.numbers), spans.panels
        for_keys = kv_heads * total * dim // 2 * PAIR_BYTES // 4
        for_values = kv_heads * total * -(-width // COLUMNS) * COLUMNS // 2 * PAIR_BYTES // 4
        room, weights = (spans.most + 1) * ROWS * COLUMNS + ROWS, spans.most * ROWS * COLUMNS
        self._panels = grown(self._panels, for_keys + for_values, self.team)
        self._room, self._weights = (
            grown(self._room, threads * room, self.team),
            grown(self._weights, threads * weights // 2, self.team),
        )
        near = self._panels.data_ptr()
        places = spans.numbers.ctypes.data, spans.tables.ctypes.data
        self.team.run(
            threads,
            *(self.laying, number, len(spans.tables), size, kv_heads, blocks, dim, width, total),
            *(*places, keys.data_ptr(), values.data_ptr(), near, near + for_keys * 4),
        )
        self.team.run(
            threads,
            *(
                self.reading,
                number,
                count,
                heads,
                kv_heads,
                dim,
                width,
                total,
                spans.blocks,
                glance.window,
                room,
                weights,
            ),
            *(
                places[0],
                queries.data_ptr(),
                near,
                near + for_keys * 4,
                glance.limit.data_ptr(),
                glance.sinks.data_ptr(),
            ),
            *(out.data_ptr(), self._room.data_ptr(), self._weights.data_ptr()),
        )


def lies_in_panels(packed: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN packed a bfloat16 `weight` [columns, width] so: looked up in its first, middle and last panel."""
    columns, width = weight.shape
    panels, depth = -(-columns // COLUMNS), -(-width // 32) * 32
    try:
        size, address = torch.ops.mkldnn._nbytes(packed), torch.ops.mkldnn.data_ptr(packed)
    except (AttributeError, RuntimeError):  # another torch
        return False
    if size != panels * COLUMNS * depth * 2:
        return False
    told = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.int16)
    told = told.view(panels, depth // 2, COLUMNS, 2)
    for panel in {0, panels // 2, panels - 1}:
        rows = weight[panel * COLUMNS : (panel + 1) * COLUMNS].contiguous().view(torch.int16)
        expected = torch.nn.functional.pad(rows, (0, depth - width, 0, COLUMNS - len(rows)))
        if not torch.equal(told[panel], expected.view(COLUMNS, depth // 2, 2).transpose(0, 1)):
            return False
    return True


@cache
def compile_tiles() -> tuple[int, int, int, int]:
    return compile_multiply(), compile_lay_out(), compile_read_prompt(), compile_look_back_tiles()
