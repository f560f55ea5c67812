"""The compiled loops as functions of tensors."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from attrs import define, field, frozen
from numba.core.errors import NumbaError
from torch import Tensor

from scaleout.generate.compiled.look_back import AT_ONCE, compile_look_back
from scaleout.generate.compiled.multiply import GELU, GELU_TANH, RELU, SCRATCH, SWISH, compile_multiply
from scaleout.generate.compiled.norm import compile_normalise
from scaleout.generate.compiled.numbers import BITS, FLOATS
from scaleout.generate.compiled.team import Team, find_team
from scaleout.generate.compiled.tile import can_tile
from scaleout.generate.compiled.turn import compile_turn
from scaleout.generate.compiled.weigh import compile_hand_out, compile_weigh

log = logging.getLogger(__name__)

KINDS = {torch.bfloat16: BITS, torch.float32: FLOATS}

ALONE = 1 << 14
"""Numbers. For fewer a second thread is not worth waking."""


@frozen(eq=False)
class Glance:
    """How scores are weighed, for compiled loops: `window` 0 for none, `limit` [1] 0 for none, `sinks` [heads] -inf for none."""

    window: int
    limit: Tensor
    sinks: Tensor

    @classmethod
    def of(cls, heads: int, window: int | None, softcap: float | None, sinks: Tensor | None) -> Glance:
        none = torch.full((heads,), float("-inf"))
        return cls(
            window or 0, torch.tensor([softcap or 0.0]), none if sinks is None else sinks.detach().float().contiguous()
        )


@define(eq=False)
class Backward:
    """Which blocks the first rows of a step look back at: `tables` int64 [rows, width], `lengths` int64 [rows]."""

    tables: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, tables: Sequence[Sequence[int]], lengths: Sequence[int]) -> Backward:
        wide = np.zeros((len(tables), max(map(len, tables), default=0)), dtype=np.int64)
        for row, table in enumerate(tables):
            wide[row, : len(table)] = table
        return cls(wide, np.asarray(lengths, dtype=np.int64))


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
class Loops:
    """For tensors of one dtype on the CPU, contiguous. One thread at a time: it keeps the loops' scratch memory."""

    team: Team
    normalising: int
    turning: int
    weighing: int
    handing: int
    looking: int
    multiplying: int | None = None
    """None: oneDNN does it."""
    _room: Tensor = field(factory=lambda: torch.empty(0))
    _scores: Tensor = field(factory=lambda: torch.empty(0))

    def normalise(self, rows: Tensor, norm: Tensor) -> Tensor:
        """`rows` [rows, width], `norm` float32 [1 + width]: the length that no row falls below, and the weight → [rows, width]."""
        count, width = rows.shape
        out = torch.empty_like(rows)
        threads = threads_for(count * width)
        self.team.run(threads, self.normalising, count, width, rows.data_ptr(), norm.data_ptr(), out.data_ptr())
        return out

    def turn(
        self,
        rows: Tensor,
        cosines: Tensor,
        sines: Tensor,
        slots: Tensor,
        caches: tuple[Tensor, Tensor],
        query_heads: int,
        norms: Tensor | None,
    ) -> Tensor:
        """`rows` [tokens, heads * dim], of queries, keys and values; `cosines`, `sines` [tokens, dim]; `slots` int64 [tokens];
        `caches` of keys and values, [kv_heads, blocks, block_size, dim]; `norms` float32 [2, 1 + dim] of query and key heads
        → queries [query_heads, tokens, dim]. Keys and values are in the cache then.
        """
        keys, values = caches
        count, (kv_heads, blocks, size, dim) = len(rows), keys.shape
        queries = rows.new_empty(query_heads, count, dim)
        self.team.run(
            threads_for(rows.numel()),
            *(self.turning, count, query_heads, kv_heads, dim, blocks * size, 0 if norms is None else 1 + dim),
            *(rows.data_ptr(), cosines.data_ptr(), sines.data_ptr(), slots.data_ptr()),
            *(keys.data_ptr(), values.data_ptr(), queries.data_ptr(), 0 if norms is None else norms.data_ptr()),
        )
        return queries

    def look_back(
        self, back: Backward, queries: Tensor, caches: tuple[Tensor, Tensor], glance: Glance, out: Tensor
    ) -> None:
        """The first rows of `queries` [heads, tokens, dim], scaled, at `caches` [kv_heads, blocks, block_size, dim] → `out`
        [rows, heads, dim], of at least as many rows.
        """
        keys, values = caches
        heads, count, dim = queries.shape
        kv_heads, blocks, size, width = values.shape
        rows, columns = back.tables.shape
        group = heads // kv_heads
        room, scores = size * max(dim, width) + group * (dim + width), group * columns * size
        threads = torch.get_num_threads()
        self._room, self._scores = grown(self._room, threads * room), grown(self._scores, threads * scores)
        self.team.run(
            threads,
            *(
                self.looking,
                rows,
                count,
                heads,
                kv_heads,
                dim,
                width,
                blocks,
                size,
                columns,
                glance.window,
                room,
                scores,
            ),
            *(
                queries.data_ptr(),
                keys.data_ptr(),
                values.data_ptr(),
                back.tables.ctypes.data,
                back.lengths.ctypes.data,
            ),
            *(glance.limit.data_ptr(), glance.sinks.data_ptr(), out.data_ptr()),
            *(self._room.data_ptr(), self._scores.data_ptr()),
        )

    def weigh(self, scores: Tensor, glance: Glance) -> Tensor:
        """`scores` [heads, rows, keys], the rows being the last of the keys → weights in the same place, and what they are to be
        multiplied by, float32 [heads, rows].
        """
        heads, rows, keys = scores.shape
        shares = torch.empty(heads, rows)
        self.team.run(
            torch.get_num_threads(),
            *(self.weighing, heads, rows, keys, glance.window),
            *(scores.data_ptr(), glance.limit.data_ptr(), glance.sinks.data_ptr(), shares.data_ptr()),
        )
        return shares

    def panels(self, packed: Tensor, weight: Tensor, bias: Tensor | None) -> Panels | None:
        """`weight` [columns, width] as oneDNN `packed` it. None where that is not as `multiply` reads it, or there is no `multiply`."""
        columns, width = weight.shape
        if self.multiplying is None or width % 2 or not lies_in_panels(columns, width):
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
        self._room = grown(self._room, threads * SCRATCH)
        other = panels if second is None else second
        bias, other_bias, nothing = panels.bias, other.bias, (0, 0)
        length, address = nothing if bias is None else (columns, bias.data_ptr())
        other_length, other_address = nothing if other_bias is None else (columns, other_bias.data_ptr())
        more, more_address = nothing if added is None else (count, added.data_ptr())
        self.team.run(
            threads,
            *(
                self.multiplying or 0,
                count,
                panels.width,
                columns,
                0 if activation is None else ACTIVATIONS[activation],
            ),
            *(length, other_length, more, rows.data_ptr(), panels.address, other.address, address, other_address),
            *(more_address, out.data_ptr(), self._room.data_ptr()),
        )
        return out

    def hand_out(self, seen: Tensor, shares: Tensor, out: Tensor) -> None:
        """`seen` [heads, rows, dim] times `shares` [heads, rows] → `out` [rows, heads, dim]."""
        heads, rows, width = seen.shape
        addresses = seen.data_ptr(), shares.data_ptr(), out.data_ptr()
        self.team.run(threads_for(seen.numel()), self.handing, heads, rows, width, *addresses)


def threads_for(numbers: int) -> int:
    return 1 if numbers < ALONE else torch.get_num_threads()


def grown(room: Tensor, count: int) -> Tensor:
    """`room`, or a larger one of at least `count` floats."""
    return room if room.numel() >= count else torch.empty(count + count // 2)


@cache
def _addresses(kind: int) -> tuple[int, int, int, int, int]:
    return (
        compile_normalise(kind),
        compile_turn(kind),
        compile_weigh(kind),
        compile_hand_out(kind),
        compile_look_back(kind),
    )


@cache
def _multiply_address() -> int:
    return compile_multiply()


@cache
def lies_in_panels(columns: int, width: int) -> bool:
    """Whether oneDNN packs bfloat16 weights of this shape so. It decides by the shape alone."""
    wide, deep = -(-columns // 64) * 64, -(-width // 32) * 32
    weight = torch.arange(columns * width, dtype=torch.int32).remainder(1 << 14).to(torch.int16).view(torch.bfloat16)
    weight = weight.view(columns, width)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        size, address = torch.ops.mkldnn._nbytes(packed), torch.ops.mkldnn.data_ptr(packed)
    except (AttributeError, RuntimeError):  # another torch
        return False
    if size != wide * deep * 2:
        return False
    told = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.int16).clone()
    expected = torch.nn.functional.pad(weight.view(torch.int16), (0, deep - width, 0, wide - columns))
    return torch.equal(told.view(wide // 64, deep // 2, 64, 2), expected.view(-1, 64, deep // 2, 2).transpose(1, 2))


def open_loops(dtype: torch.dtype, block_size: int = AT_ONCE) -> Loops:
    """Compiles what this machine has not compiled before: some seconds. Raises ValueError, OSError or AttributeError where it cannot be."""
    if dtype not in KINDS or block_size % AT_ONCE:
        raise ValueError(f"none for {dtype} in blocks of {block_size}")
    team = find_team()
    try:
        multiplying = _multiply_address() if dtype == torch.bfloat16 and can_tile() else None
        return Loops(team, *_addresses(KINDS[dtype]), multiplying)
    except NumbaError as error:  # one that compiles less, or otherwise, than those we know
        raise ValueError(f"numba cannot compile them: {str(error).splitlines()[0]}") from error
