"""Ids of bytes that are no whole characters: what an engine that streams only whole characters keeps to itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from attrs import define, field


@define
class SplitCharacters:
    """`token_bytes` gives the bytes of an id. The table is made by `load`, which looks at every id once."""

    vocab_size: int
    token_bytes: Callable[[int], bytes | None]
    _ids: dict[bytes, int] = field(factory=dict)

    def load(self) -> None:
        """May take tenths of a second: call it off the event loop."""
        self._ids = dict(self._incomplete())

    def _incomplete(self) -> Iterable[tuple[bytes, int]]:
        for token_id in range(self.vocab_size - 1, -1, -1):  # of two ids with the same bytes the lower one stays
            data = self.token_bytes(token_id)
            if not data:
                continue
            try:
                data.decode()
            except UnicodeDecodeError:
                yield data, token_id

    def spell(self, data: bytes, count: int | None) -> list[int] | None:
        """`count` ids (None: as few as may be) that spell `data`, none of them whole characters; None where there are no such ids."""
        # What spells the first bytes, by how many ids it takes.
        by_count: list[dict[int, list[int]]] = [{0: []}, *({} for _ in data)]
        for end in range(1, len(data) + 1):
            for start in range(end):
                token_id = self._ids.get(data[start:end])
                if token_id is None:
                    continue
                for used, ids in by_count[start].items():
                    by_count[end].setdefault(used + 1, [*ids, token_id])
        found = by_count[len(data)]
        return found.get(min(found, default=0) if count is None else count)
