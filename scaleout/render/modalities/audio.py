"""Sounds: decoded within bounds by libsndfile, resampled, and made into spectrograms by the model's own feature extractor."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, frozen

from scaleout.core import Field, Json
from scaleout.core.features import Batched, Flat
from scaleout.core.media import MediaFile
from scaleout.errors import BadRequest, ConfigError
from scaleout.render.media_hash import Tagged
from scaleout.render.modality import (
    MediaLimits,
    MediaModel,
    MissingExtra,
    Processed,
    Run,
    Slots,
    size_of,
    tensor_of,
    token_of,
)

EXTRA = "audio"
MAX_SAMPLES = 64 << 20
"""Samples of all channels together, before resampling. 256 MiB in memory, whatever rate a file claims."""
RATES = range(1_000, 768_001)


@frozen
class AudioFamily:
    """`fields`: spectrogram [bands, frames], its mask [frames] and how many of its frames are sound → what the model is given."""

    fields: Callable[[Any, Any, int], dict[str, Field]]
    text: str = "<|audio_bos|>{}<|audio_eos|>"
    token: str = "<|AUDIO|>"

    def slots(self, model: MediaModel) -> Slots:
        token = token_of(model, "audio_token", self.token)
        return Slots(token, self.text.format(token), token)


def _whole(features: Any, mask: Any, length: int) -> dict[str, Field]:
    return {
        "input_features": Field(tensor_of(features), Batched()),
        "feature_attention_mask": Field(tensor_of(mask), Batched()),
    }


def _cut(features: Any, mask: Any, length: int) -> dict[str, Field]:
    import numpy as np

    sound = tensor_of(features[:, :length])
    return {
        "input_audio_features": Field(sound, Flat([[(None, None, None), (0, length, None)]], dim=1)),
        "feature_attention_mask": Field(tensor_of(mask), Batched(keep_on_cpu=True)),
        "audio_feature_lengths": Field(tensor_of(np.asarray(length, "int64")), Batched(keep_on_cpu=True)),
    }


FAMILIES: Mapping[str, AudioFamily] = {"qwen2_audio": AudioFamily(_whole), "qwen2_5_omni": AudioFamily(_cut)}
"""By the model's type."""


def open_modality(model: MediaModel, limits: MediaLimits) -> AudioModality | None:
    """The model's way with sounds; None where it takes none. Raises `MissingExtra`, `ConfigError`."""
    family = FAMILIES.get(str(model.config.get("model_type")))
    if family is None:
        return None
    try:
        import soundfile  # noqa: F401
        import soxr  # noqa: F401
        from transformers import AutoFeatureExtractor
    except (ImportError, OSError):
        raise MissingExtra(EXTRA) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            extractor = AutoFeatureExtractor.from_pretrained(  # type: ignore[no-untyped-call]
                str(model.folder), local_files_only=True, trust_remote_code=False
            )
    except (ImportError, OSError, ValueError, KeyError) as error:
        raise ConfigError(f"The feature extractor of {model.name!r} cannot be used: {error}") from error
    return AudioModality(model, family, family.slots(model), extractor, limits)


@define(frozen=True)
class AudioModality:
    model: MediaModel
    family: AudioFamily
    slots: Slots
    extractor: Any
    limits: MediaLimits

    def finish(self, fields: Mapping[str, Field]) -> Mapping[str, Field]:
        return fields

    def content_key(self, file: MediaFile, io_kwargs: Mapping[str, Json]) -> Any:
        return Tagged("audio", file.data)

    def process(
        self, file: MediaFile, kwargs: Mapping[str, Json], io_kwargs: Mapping[str, Json], alone: bool
    ) -> Processed:
        sound = self.decode(file)
        # What decides about the number of slots is not the request's to change.
        given = {**kwargs, "padding": "max_length", "return_attention_mask": True}
        rate = self.extractor.sampling_rate
        try:
            inputs = self.extractor(sound, sampling_rate=rate, return_tensors="np", **given)
        except (ValueError, TypeError) as error:
            raise BadRequest(f"The sound cannot be prepared for this model: {error}") from error
        features, mask = inputs["input_features"][0], inputs["attention_mask"][0]
        length = int(mask.sum())
        slots = ((length - 1) // 2 + 1 - 2) // 2 + 1
        if slots < 1:
            raise BadRequest("The sound is too short for this model.")
        fields = self.family.fields(features, mask, length)
        return Processed(fields, [Run(self.slots.slot, slots)], sum(size_of(one.data) for one in fields.values()))

    def decode(self, file: MediaFile) -> Any:
        """One channel of samples at the model's rate, float32. Raises `BadRequest`."""
        import soundfile
        import soxr

        try:
            with soundfile.SoundFile(io.BytesIO(file.data)) as opened:
                rate, channels = opened.samplerate, opened.channels
                if rate not in RATES or channels > 64:
                    raise BadRequest(f"A sound of {channels} channels at {rate} Hz is not read.")
                most = min(int(self.limits.max_audio_seconds * rate), MAX_SAMPLES // channels)
                # The header may lie about the length, so that one sample more is asked for than is allowed.
                samples = None if opened.frames > most else opened.read(most + 1, dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, ValueError, TypeError) as error:
            raise BadRequest("The file is no sound that can be read here (WAV, FLAC, OGG, MP3).") from error
        if samples is None or len(samples) > most:
            raise BadRequest(
                f"The sound is longer than the limit of {self.limits.max_audio_seconds:g} seconds (--max-audio-seconds) "
                f"or has more than {MAX_SAMPLES} samples."
            )
        mono = samples[:, 0] if channels == 1 else samples.mean(axis=1)
        wanted = self.extractor.sampling_rate
        return mono if rate == wanted else soxr.resample(mono, rate, wanted)
