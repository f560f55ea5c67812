"""Media of a conversation → features: which kinds a model takes, what its files become, and where in the prompt they go."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Literal

from attrs import define, evolve, field, frozen

from scaleout.core import ChatRequest, Features, Json, MediaFeature, Source
from scaleout.core.media import MediaFile, MediaRef, MediaSet
from scaleout.errors import BadRequest, ConfigError, RequestError
from scaleout.render.media_cache import MediaCache
from scaleout.render.media_hash import digest, new_hasher
from scaleout.render.modality import SCOPES, MediaLimits, MediaModel, MissingExtra, Modality, Processed, scoped
from scaleout.tokenizer import Tokenizer

KINDS = ("image", "audio", "video")
MAX_ALIASES = 16_384
"""Names that clients gave to media, and that are remembered."""


@frozen
class MediaSettings:
    """The operator's choices. `limit_per_prompt`: items of a kind in one request; `max_items`: of all kinds together."""

    limits: MediaLimits = field(factory=MediaLimits)
    hasher: str = "blake3"
    limit_per_prompt: Mapping[str, int] = field(factory=dict)
    max_items: int = 128
    max_bytes: int = 64 << 20
    cache_bytes: int = 512 << 20
    trust_request_kwargs: bool = False
    interleave_strings: bool = False
    raw_pixels: bool = True
    """Whether pixels travel as they are to engines of models that bring them into range themselves."""


@frozen
class Prepared:
    """One item of a request, ready to be put into its prompt."""

    ref: MediaRef
    hash: str
    item: Processed
    source: Source | None = None

    def feature(self, offset: int, length: int) -> MediaFeature:
        return MediaFeature(self.ref.modality, self.hash, offset, length, self.item.fields, self.source)


@frozen
class Wishes:
    """What a request says about its media, checked."""

    payload: Literal["tensors", "source", "none"] = "tensors"
    processor_kwargs: Mapping[str, Json] = field(factory=dict)
    io_kwargs: Mapping[str, Json] = field(factory=dict)
    cache_salt: str | None = None


@define
class Multimodal:
    """The media of one model. `kinds` it takes; `missing` it would take, if the packages of the named extra were there."""

    model: MediaModel
    settings: MediaSettings
    kinds: Mapping[str, Modality]
    missing: Mapping[str, str]
    cache: MediaCache
    _aliases: OrderedDict[Hashable, tuple[Hashable, str]] = field(factory=OrderedDict)
    _lock: Lock = field(factory=Lock)

    @classmethod
    def open(cls, model: MediaModel, settings: MediaSettings, tokenizer: Tokenizer) -> Multimodal:
        """Raises `ConfigError` where the model's processors or tokens do not fit."""
        kinds: dict[str, Modality] = {}
        missing: dict[str, str] = {}
        for kind, open_modality in _openers().items():
            try:
                opened = open_modality(model, settings.limits)
            except MissingExtra as error:
                missing[kind] = error.extra
                continue
            if opened is not None:
                _check_tokens(opened, tokenizer, kind)
                kinds[kind] = opened
        if kinds:
            try:
                new_hasher(settings.hasher)
            except ImportError:
                raise ConfigError(
                    "--mm-hasher-algorithm blake3 needs the extra [multimodal]: pip install 'scaleout[multimodal]'"
                ) from None
        return cls(model, settings, kinds, missing, MediaCache(settings.cache_bytes))

    def require(self, kind: str, name: str) -> None:
        """Raises `BadRequest` for a kind that the model does not take, or not as this server is installed."""
        if kind in self.missing:
            raise BadRequest(
                f"This server cannot read {kind} input: the extra [{self.missing[kind]}] is not installed "
                f"(pip install 'scaleout[{self.missing[kind]}]').",
                "messages",
            )
        if kind not in self.kinds:
            takes = " and ".join(self.kinds)
            what = f"only {takes} beside text" if takes else "since its family is not known here"
            raise BadRequest(f"{name} takes no {kind} input, {what}.", "messages")

    def check_counts(self, refs: Sequence[MediaRef]) -> None:
        """Raises `BadRequest` for more items than are allowed, before any of them is fetched."""
        if len(refs) > self.settings.max_items:
            raise BadRequest(
                f"The request holds {len(refs)} media items, at most {self.settings.max_items} are allowed.", "messages"
            )
        for kind, most in self.settings.limit_per_prompt.items():
            count = sum(ref.modality == kind for ref in refs)
            if count > most:
                raise BadRequest(f"At most {most} {kind}(s) may be provided in one prompt.", "messages")

    def wishes_of(self, request: ChatRequest) -> Wishes:
        """Raises `BadRequest` for options that are not trusted."""
        return self.read_wishes(request.mm_options, request.options.cache_salt)

    def read_wishes(self, options: Mapping[str, Json], cache_salt: str | None = None) -> Wishes:
        for name in ("mm_processor_kwargs", "media_io_kwargs"):
            if options.get(name) and not self.settings.trust_request_kwargs:
                raise BadRequest(
                    f"Per-request {name} are disabled by default because they can make the server do much more work "
                    "than usual. Start the server with --trust-request-mm-kwargs to allow them.",
                    name,
                )
        payload: Literal["tensors", "source", "none"] | None = options.get("mm_payload")
        if payload is None:
            payload = "none" if options.get("return_mm_kwargs") is False else "tensors"
        return Wishes(
            payload, options.get("mm_processor_kwargs") or {}, options.get("media_io_kwargs") or {}, cache_salt
        )

    def prepare(self, refs: Sequence[MediaRef], media: MediaSet, wishes: Wishes, max_slots: int) -> list[Prepared]:
        """Every item of a request, from the cache where it was seen before. Raises `BadRequest` naming the item."""
        counts = {kind: sum(ref.modality == kind for ref in refs) for kind in self.kinds}
        prepared = []
        slots = 0
        for ref in refs:
            one = self._prepare_one(ref, media.files.get(ref), wishes, counts[ref.modality] == 1)
            slots += count_slots(one.item)
            if slots > max_slots:
                raise BadRequest(
                    f"This model's maximum context length is {max_slots} tokens. However, the media of the prompt take "
                    f"more than that up to {ref.path}. Please send fewer or smaller ones.",
                    "input_tokens",
                )
            prepared.append(one)
        return prepared

    def _prepare_one(self, ref: MediaRef, file: MediaFile | None, wishes: Wishes, alone: bool) -> Prepared:
        try:
            return self._look_and_prepare(ref, file, wishes, alone)
        except RequestError as error:
            error.message, error.param = f"{ref.path}: {error.message}", ref.path
            error.args = (error.message,)
            raise

    def _look_and_prepare(self, ref: MediaRef, file: MediaFile | None, wishes: Wishes, alone: bool) -> Prepared:
        kind = ref.modality
        alias = (wishes.cache_salt, kind, ref.uuid)
        extras = self._hashed_extras(kind, wishes)
        if file is None and ref.url is None:
            return self._recall(ref, alias)
        file = file or read_data_url(ref.url or "", self.settings.max_bytes)
        modality = self.kinds[kind]
        io_kwargs = {**_part(self.settings.limits.io_kwargs, kind), **_part(wishes.io_kwargs, kind)}
        content = self._digest(kind, modality.content_key(file, io_kwargs), extras)
        key = (kind, content, alone)
        item = self.cache.find(key)
        if item is None:
            kwargs = {
                **scoped(self.settings.limits.processor_kwargs, kind),
                **scoped(wishes.processor_kwargs, kind),
            }
            item = modality.process(file, kwargs, io_kwargs, alone)
            self.cache.keep(key, item)
        named = content
        if ref.uuid is not None:
            named = self._digest(kind, ref.uuid, extras) if extras else ref.uuid
            with self._lock:
                self._aliases[alias] = (key, named)
                self._aliases.move_to_end(alias)
                if len(self._aliases) > MAX_ALIASES:
                    self._aliases.popitem(last=False)
        source = None
        if wishes.payload == "source":
            source = Source(file.data, file.media_type, wishes.processor_kwargs)
        return Prepared(ref, named, item, source)

    def _recall(self, ref: MediaRef, alias: Hashable) -> Prepared:
        """An item that is only named."""
        with self._lock:
            key, named = self._aliases.get(alias, (None, ""))
        item = None if key is None else self.cache.find(key)
        if item is None:
            raise BadRequest(f"the {ref.modality} {ref.uuid!r} is not known here (any more); send its data.")
        return Prepared(ref, named, item)

    def _hashed_extras(self, kind: str, wishes: Wishes) -> dict[str, Any]:
        """What beside the content decides about the result, as far as the request says it."""
        other = {scope for name, scope in SCOPES.items() if name != kind}
        processor = {name: value for name, value in wishes.processor_kwargs.items() if name not in other}
        io = {name: value for name, value in wishes.io_kwargs.items() if name == kind}
        extras = {"media_io_kwargs": io, "mm_processor_kwargs": processor}
        return {name: value for name, value in extras.items() if value}

    def _digest(self, kind: str, value: Any, extras: Mapping[str, Any]) -> str:
        return digest(self.settings.hasher, {"model_id": self.model.name, kind: value, **extras})

    def finish(self, features: Features) -> Features:
        """The same with every field as the model's own code takes it."""
        return evolve(features, items=[self._finish_one(item) for item in features.items])

    def _finish_one(self, item: MediaFeature) -> MediaFeature:
        modality = self.kinds.get(item.modality)
        if modality is None or item.fields is None:
            return item
        return evolve(item, fields=modality.finish(item.fields))

    def fill(self, features: Features) -> Features:
        """The same with everything that came as a file made into tensors. Raises `BadRequest` where they do not fit."""
        counts: dict[str, int] = {}
        for item in features.items:
            counts[item.modality] = counts.get(item.modality, 0) + 1
        filled = [self._fill_one(item, counts[item.modality] == 1) for item in features.items]
        return Features(filled)

    def _fill_one(self, item: MediaFeature, alone: bool) -> MediaFeature:
        if item.source is None or item.fields is not None:
            return item
        self.require(item.modality, self.model.name)
        path = f"features.mm_sources.{item.modality}"
        ref = MediaRef(item.modality, "", None, path)
        wishes = self.read_wishes({"mm_processor_kwargs": item.source.processor_kwargs})
        file = MediaFile(item.source.data, item.source.media_type)
        made = self._prepare_one(ref, file, wishes, alone)
        if count_slots(made.item) > item.length:
            raise BadRequest(
                f"{path}: the item needs {count_slots(made.item)} slots, its place has {item.length}.", path
            )
        return evolve(item, fields=made.item.fields, source=None)


def count_slots(item: Processed) -> int:
    return sum(piece.count for piece in item.expansion if not isinstance(piece, str))


def read_data_url(url: str, max_bytes: int) -> MediaFile:
    """The file inside a data URL. Raises `BadRequest` for other URLs, and for more than `max_bytes`."""
    head, comma, body = url.partition(",")
    if not comma or head[:5].lower() != "data:":
        raise BadRequest("Input should be an http(s) URL or a data URL.")
    media_type, *marks = head[5:].split(";")
    if "base64" not in (mark.strip().lower() for mark in marks):
        raise BadRequest("A data URL should be encoded in base64.")
    if len(body) // 4 * 3 > max_bytes + 2:
        raise BadRequest(f"The media are larger than the limit of {max_bytes} bytes (--max-media-bytes).")
    try:
        return MediaFile(b64decode(body, validate=True), media_type or None)
    except (binascii.Error, ValueError):
        pass
    try:
        return MediaFile(b64decode("".join(body.split()) + "=" * (-len(body) % 4), validate=True), media_type or None)
    except (binascii.Error, ValueError):
        raise BadRequest("The data URL is not valid base64.") from None


def _openers() -> dict[str, Any]:
    from scaleout.render.modalities import audio, image, video

    return {"image": image.open_modality, "audio": audio.open_modality, "video": video.open_modality}


def _check_tokens(modality: Modality, tokenizer: Tokenizer, kind: str) -> None:
    for token in (modality.slots.token, modality.slots.slot):
        if tokenizer.id_of(token) not in tokenizer.added_tokens:
            raise ConfigError(f"The tokenizer lacks {token!r}, which stands for {kind} input of this model.")


def _part(kwargs: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = kwargs.get(kind)
    return found if isinstance(found, dict) else {}


def spellings(kinds: Iterable[Modality]) -> frozenset[str]:
    """Tokens that only the template may write: supplied text that spells one stays text, the assistant's too."""
    return frozenset(token for kind in kinds for token in (kind.slots.token, kind.slots.slot))
