"""What a picture, sound or film has become for an engine: named tensors, their place in the prompt, and a hash (CONTRACT 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import field, frozen

from scaleout.core.values import Json

Modality = str
"""`image`, `audio` or `video` here; other names of a peer's render stage pass through."""


@frozen
class Tensor:
    """An array without a library: `data` holds its elements in little-endian C order, `dtype` is torch's name for their kind.

    `data` has exactly as many bytes as `shape` and `dtype` ask for. A scalar has the shape `()`.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview = field(repr=False)


FieldValue = Tensor | int | float | None | list["FieldValue"]
"""A value as it travels: a tensor, a plain number, or a list of them (parts of unequal shape)."""

Slice = tuple[int | None, int | None, int | None]


@frozen
class Batched:
    """One entry of the field belongs to one item; stacked (`[item, …]`) where the shapes agree, else listed."""

    keep_on_cpu: bool = False


@frozen
class Shared:
    """The same value holds for all `batch_size` items of the request."""

    batch_size: int
    keep_on_cpu: bool = False


@frozen
class Flat:
    """Items lie one behind the other along `dim`. `slices` names the part of every item of the request, not of this one alone."""

    slices: Sequence[Slice] | Sequence[Sequence[Slice]]
    dim: int = 0
    keep_on_cpu: bool = False


FieldKind = Batched | Shared | Flat


@frozen
class Field:
    """One named input of the model, as far as it belongs to one item, and how the items' parts go together in a batch.

    `Batched` and `Shared` data have no batch dimension; `Flat` data has its `dim`.
    """

    data: FieldValue
    kind: FieldKind


@frozen
class Source:
    """An item before the model's processor: the bytes of its file. For engines that run the processor themselves.

    `processor_kwargs` are the request's own, where it had any.
    """

    data: bytes = field(repr=False)
    media_type: str | None = None
    processor_kwargs: Mapping[str, Json] = field(factory=dict)


@frozen
class MediaFeature:
    """One item of a prompt. `token_ids[offset : offset + length]` stand for it, placeholders already expanded.

    Not every id of that range need be a slot for an embedding: break and row tokens lie between. Which ones are slots is known by
    their id (the model's `image_token_id` and its like); no mask travels.

    `hash` names the content (and how it was processed): equal hashes, equal fields. `fields` None: to be found by `hash` in the
    engine's cache, or to be made of `source`. `whole` False: only the small fields that steer positions, for an engine that gets the
    embeddings from elsewhere (`ec_transfer_params`).
    """

    modality: Modality
    hash: str
    offset: int
    length: int
    fields: Mapping[str, Field] | None = None
    source: Source | None = None
    whole: bool = True


@frozen
class Features:
    """The items of one prompt by offset, never overlapping. Never empty: a prompt without items has no `Features` at all."""

    items: Sequence[MediaFeature]
    payload: Literal["tensors", "source", "none"] = "tensors"
    """What is written of them on the wire."""
