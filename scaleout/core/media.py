"""Pictures, sounds and films as requests name them, and as files that were fetched for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen


@frozen
class MediaRef:
    """One item of a conversation. `url` may be a data URL; None where only `uuid` is given, for an item seen before.

    `path` is where the request names it, for error texts.
    """

    modality: str
    url: str | None = field(repr=False)
    uuid: str | None = None
    path: str = "messages"


@frozen
class MediaFile:
    """The bytes behind a reference, still encoded. `media_type` is what their sender said they are, if anything."""

    data: bytes = field(repr=False)
    media_type: str | None = None


@frozen
class MediaSet:
    """What was fetched for one request, by reference. `absent`: nobody fetches, placeholders stay as the template wrote them.

    The latter gives a prompt that shows what its end looks like, without a single picture: derendering needs no more.
    """

    files: Mapping[MediaRef, MediaFile] = field(factory=dict)
    absent: bool = False


ABSENT = MediaSet(absent=True)


class MediaWanted(Exception):
    """Raised by render where a request names media and nobody has fetched them yet. `refs` are those that must be."""

    def __init__(self, refs: Sequence[MediaRef]) -> None:
        super().__init__(f"{len(refs)} media items have to be fetched")
        self.refs = refs
