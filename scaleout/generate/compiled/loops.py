"""The compiled loops as functions of tensors."""

from __future__ import annotations

from functools import cache

import torch
from attrs import define
from numba.core.errors import NumbaError
from torch import Tensor

from scaleout.generate.compiled.look_back import AT_ONCE
from scaleout.generate.compiled.norm import compile_normalise
from scaleout.generate.compiled.numbers import BITS, FLOATS
from scaleout.generate.compiled.plain import Plain, compile_plain
from scaleout.generate.compiled.room import threads_for
from scaleout.generate.compiled.team import Team, find_team
from scaleout.generate.compiled.tile import can_tile
from scaleout.generate.compiled.tiles import Tiles, compile_tiles
from scaleout.generate.compiled.turn import compile_turn

KINDS = {torch.bfloat16: BITS, torch.float32: FLOATS}


@define(eq=False)
class Loops:
    """For tensors of one dtype on the CPU, contiguous. One thread at a time: it keeps the loops' scratch memory."""

    team: Team
    normalising: int
    turning: int
    eyes: Plain | Tiles

    @property
    def tiles(self) -> Tiles | None:
        """What multiplies too, where there is such a thing."""
        return self.eyes if isinstance(self.eyes, Tiles) else None

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


@cache
def _addresses(kind: int) -> tuple[int, int]:
    return compile_normalise(kind), compile_turn(kind)


def open_loops(dtype: torch.dtype, block_size: int = AT_ONCE, *, tiled: bool = True) -> Loops:
    """Compiles what this machine has not compiled before: some seconds. Raises ValueError, OSError or AttributeError where it cannot be.

    `tiled`: by tiles where they can be.
    """
    if dtype not in KINDS or block_size % AT_ONCE:
        raise ValueError(f"none for {dtype} in blocks of {block_size}")
    team, kind = find_team(), KINDS[dtype]
    try:
        by_tiles = tiled and dtype == torch.bfloat16 and can_tile()
        eyes = Tiles(team, *compile_tiles()) if by_tiles else Plain(team, *compile_plain(kind))
        return Loops(team, *_addresses(kind), eyes)
    except NumbaError as error:  # one that compiles less, or otherwise, than those we know
        raise ValueError(f"numba cannot compile them: {str(error).splitlines()[0]}") from error
