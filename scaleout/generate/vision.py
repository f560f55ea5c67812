"""A model's own towers: pictures and sounds of a request → embeddings at their slots, and positions that these bend. Knows no scheduler."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as ReadOnly
from inspect import signature
from math import prod
from typing import Any

import numpy as np
import torch
from attrs import define, field
from torch import Tensor
from transformers import PreTrainedModel

from scaleout.core import GenerateRequest
from scaleout.core.features import Field, MediaFeature
from scaleout.core.features import Tensor as Array
from scaleout.errors import BadRequest
from scaleout.generate.encoder_cache import Encoded, EncoderCache
from scaleout.generate.feature_tensors import alone_in_batch, content_key, joined, numbers
from scaleout.generate.media import Item, Media, runs_of
from scaleout.generate.turns import Turns
from scaleout.generate.vision_families import Family, Intake, family_of, slot_id

log = logging.getLogger(__name__)

REAL = ("float64", "float32", "float16", "bfloat16")
"""Kinds of numbers that pixels come in. Bytes would be taken for numbers out of the model's range, and give wrong answers."""


@define(eq=False)
class Vision:
    """The eyes and ears of `model`, which runs on `device`. `prepare` may be called from any thread, the rest from the engine's alone."""

    model: PreTrainedModel
    family: Family
    slot_ids: Mapping[str, int]
    cache: EncoderCache
    device: torch.device
    dtype: torch.dtype
    _merge: int = 1
    _bends: bool = False
    _turns: Turns[Tensor] | None = field(default=None, init=False)
    """What gets on now, and may pause."""
    _deeper: tuple[Tensor, list[Tensor]] | None = field(default=None, init=False)

    @classmethod
    def of(
        cls, model: PreTrainedModel, config: Mapping[str, Any], capacity: int, device: torch.device
    ) -> Vision | None:
        """None for a model without eyes that are known here. `capacity`: bytes of the encoder cache."""
        family = family_of(config)
        if family is None:
            return None
        ids = {name: slot_id(model.config, intake) for name, intake in family.intakes.items()}
        vision = cls(
            model=model,
            family=family,
            slot_ids={name: found for name, found in ids.items() if found is not None},
            cache=EncoderCache(capacity),
            device=device,
            dtype=next(model.parameters()).dtype,
            merge=int(getattr(getattr(model.config, "vision_config", None), "spatial_merge_size", 1)),
            bends=hasattr(model.model, "get_rope_index"),
        )
        if family.deep:
            model.model.language_model.register_forward_pre_hook(vision._add_deeper, with_kwargs=True)
        if device.type == "cpu":
            for layer in tower_layers(model.model):
                layer.register_forward_pre_hook(vision._pause)
        return vision

    # ------------------------------------------------------------------------------ before a request reaches the loop

    def prepare(self, request: GenerateRequest) -> Media:
        """Places, names and positions. Takes time with the size of the features: call it off the event loop. Raises BadRequest.

        `check_places` has seen the request.
        """
        assert request.features is not None
        salt = request.cache_salt or ""
        steering: list[Mapping[str, Field]] = []
        items: list[Item] = []
        rows: dict[int, Tensor] = {}
        for i, feature in enumerate(request.features.items):
            runs = runs_of(request.token_ids, feature, self.slot_ids[feature.modality])
            slots = sum(end - start for start, end in runs)
            if feature.fields is None:
                known = self.cache.find((salt, feature.hash))
                if known is None:
                    raise BadRequest(f"features: item {feature.hash} is not in the cache; send its data", "features")
                if len(known.rows) != slots:
                    raise wrong_count(feature.hash, slots, len(known.rows))
                key, rows[i] = known.key, known.rows
                steering.append(known.steering)
            else:
                self._check_fields(feature, slots)
                key = content_key(feature.hash, feature.fields)
                steering.append(self._steering(feature.fields))
            end = feature.offset + feature.length
            items.append(Item(feature.modality, feature.hash, key, feature.offset, end, runs, feature.fields))
        media = Media(salt, items, closed=[run for item in items for run in item.runs] if self.family.closed else ())
        media.rows.update(rows)
        if self._bends:
            media.positions, media.delta = self._positions(request.token_ids, items, steering)
        return media

    def _steering(self, fields: Mapping[str, Field]) -> Mapping[str, Field]:
        return {name: fields[name] for name in self.family.steering if name in fields}

    def _check_fields(self, feature: MediaFeature, slots: int) -> None:
        """What is wrong is said before the tower works on it, and no number of the client's decides how much memory is asked for."""
        fields, intake = feature.fields or {}, self.family.intakes[feature.modality]
        where = f"features: item {feature.hash}"
        pixels = fields.get(intake.pixels)
        if pixels is None:
            raise BadRequest(f"{where} lacks the field {intake.pixels}", "features")
        arrays = pixels.data if isinstance(pixels.data, list) else [pixels.data]
        if not all(isinstance(one, Array) and one.dtype in REAL for one in arrays):
            raise BadRequest(
                f"{where}: {intake.pixels} should hold floating-point numbers in the model's range", "features"
            )
        shape = pixels.data.shape if isinstance(pixels.data, Array) else ()
        if intake.frames is not None:
            frames = numbers(fields.get(intake.frames), 1)
            if frames is None or shape[1:] != tuple(frames):
                raise BadRequest(f"{where}: {intake.frames} does not fit {intake.pixels}", "features")
            if (frames[0] + 1) // 4 != slots:
                raise wrong_count(feature.hash, slots, (frames[0] + 1) // 4)
        if intake.grid is None:
            return
        grid = numbers(fields.get(intake.grid), 3)
        if grid is None or min(grid) < 1 or any(length % self._merge for length in grid[1:]):
            raise BadRequest(f"{where}: {intake.grid} should be time, height and width in patches", "features")
        patches = shape[0] if shape else None
        if patches != prod(grid):
            raise BadRequest(f"{where}: {intake.grid} {list(grid)} does not fit {patches} patches", "features")
        if prod(grid) != slots * self._merge**2:
            raise wrong_count(feature.hash, slots, prod(grid) // self._merge**2)

    def _positions(
        self, token_ids: ReadOnly[int], items: ReadOnly[Item], steering: ReadOnly[Mapping[str, Field]]
    ) -> tuple[np.ndarray, int]:
        """int64 [3, tokens], and how far the positions behind them are from the count."""
        kinds = torch.zeros(1, len(token_ids), dtype=torch.int32)
        for item in items:
            for start, end in item.runs:
                kinds[0, start:end] = self.family.intakes[item.modality].type_id
        rope: Any = self.model.model.get_rope_index
        given = {
            argument: [fields[name] for fields in steering if name in fields]
            for name, argument in self.family.steering.items()
        }
        try:
            tensors = {argument: joined(fields) for argument, fields in given.items() if fields}
            tensors |= {"mm_token_type_ids": kinds, "attention_mask": torch.ones_like(kinds)}
            wanted = {name: value for name, value in tensors.items() if name in signature(rope).parameters}
            positions, deltas = rope(torch.tensor([list(token_ids)]), **wanted)
        except (RuntimeError, ValueError, IndexError, StopIteration, TypeError) as error:
            log.warning("Positions of a prompt cannot be computed: %s", error)
            raise BadRequest("features: the items' grids do not fit their places in token_ids.", "features") from None
        return positions[:, 0].long().numpy(), int(deltas[0])

    # ------------------------------------------------------------------------------ between steps

    def known(self, media: Media, i: int) -> bool:
        """Whether the cache has item `i` of a prompt, which then has it too. Raises BadRequest if it does not fit its place."""
        if i in media.begun:
            return False
        item = media.items[i]
        found = self.cache.get(item.key)
        if found is not None:
            if len(found.rows) != item.slots:
                raise wrong_count(item.hash, item.slots, len(found.rows))
            media.rows[i] = found.rows
            self.cache.put((media.salt, item.hash), found)  # under the name that this request has for it
        return found is not None

    def counts(self) -> Mapping[str, int]:
        cache = self.cache
        return {
            "encoder_cache_hits": cache.hits,
            "encoder_cache_misses": cache.misses,
            "encoder_cache_bytes": cache.held,
        }

    def encode(self, media: Media, i: int) -> None:
        """Runs the tower on one item, on a CPU on as much of it as a part of one of its layers does.

        Raises BadRequest if the tower cannot take it, or gives something else than the slots hold.
        """
        item = media.items[i]
        if self.device.type != "cpu":
            self._keep(media, i, self._rows(item))
            return
        turns = media.begun.get(i)
        if turns is None:
            turns = media.begun[i] = Turns(lambda: self._rows(item))
        self._turns = turns
        try:
            ended = turns.advance()
        finally:
            self._turns = None
        if ended:
            del media.begun[i]
            self._keep(media, i, turns.result())

    def forget(self, media: Media) -> None:
        """Ends what was begun for a request that is gone."""
        while media.begun:
            media.begun.popitem()[1].drop()

    def _pause(self, *_: Any) -> None:
        """Before each part of a tower. The tower is also run where nobody takes turns."""
        if self._turns is not None:
            self._turns.pause()

    @torch.inference_mode()
    def _rows(self, item: Item) -> Tensor:
        assert item.fields is not None
        intake = self.family.intakes[item.modality]
        seen: list[Tensor] = []
        try:
            looks = self._looks(intake, item.fields)
            while len(seen) < len(looks) and sum(map(len, seen)) < item.slots:
                output = self._look(intake, looks[len(seen)])
                seen.append(flat_rows(output.pooler_output))
            rows = torch.cat(seen)
            if self.family.deep:
                rows = torch.cat([rows, *(flat_rows(deeper) for deeper in output.deepstack_features)], dim=-1)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError, KeyError, AttributeError) as error:
            log.warning("The model's tower cannot take an item of %d slots: %s", item.slots, error)
            raise BadRequest(f"features: the model's tower cannot take item {item.hash}.", "features") from None
        if len(seen) < len(looks):  # more crops than slots: each gives as many rows
            raise wrong_count(item.hash, item.slots, len(rows) * len(looks) // len(seen))
        if len(rows) != item.slots:
            raise wrong_count(item.hash, item.slots, len(rows))
        if not bool(rows.isfinite().all()):
            raise BadRequest(f"features: item {item.hash} gives embeddings that are not finite.", "features")
        return rows.to(self.dtype).clone()

    def _keep(self, media: Media, i: int, rows: Tensor) -> None:
        item = media.items[i]
        media.rows[i] = rows
        self.cache.put((media.salt, item.hash), Encoded(item.key, rows, self._steering(item.fields or {})))

    def _look(self, intake: Intake, arguments: dict[str, Any]) -> Any:
        base: Any = self.model.model
        if callable(intake.method):
            return intake.method(base, **arguments)
        return getattr(base, intake.method)(**arguments, return_dict=True)

    def _looks(self, intake: Intake, fields: Mapping[str, Field]) -> list[dict[str, Any]]:
        """Arguments of the tower, for one call after another."""
        inputs = {name: alone_in_batch(fields[name]) for name in intake.fields if name in fields}
        looks = [inputs]
        if intake.crops and self.device.type == "cpu":
            parts = {name: value.split(1) for name, value in inputs.items()}
            looks = [dict(zip(parts, part, strict=True)) for part in zip(*parts.values(), strict=True)]
        return [self._arguments(intake, look) for look in looks]

    def _arguments(self, intake: Intake, inputs: dict[str, Any]) -> dict[str, Any]:
        for name in intake.needs_axis:
            if name in inputs:
                inputs[name] = inputs[name].unsqueeze(0)
        if self.family.lone_crop and inputs["pixel_values"].shape[1] == 1:
            inputs["batch_num_images"] = torch.tensor([2])
        moved = {name: value.to(self.device) if isinstance(value, Tensor) else value for name, value in inputs.items()}
        real = {name for name, value in moved.items() if isinstance(value, Tensor) and value.is_floating_point()}
        return {name: value.to(self.dtype) if name in real else value for name, value in moved.items()}

    # ------------------------------------------------------------------------------ in a step

    def embed(self, ids: Tensor, places: ReadOnly[tuple[int, Media, int, int]]) -> Tensor:
        """`ids` [1, tokens] of a step → [1, tokens, hidden] with the pictures in them.

        `places`: at this row of the step begin the tokens of a prompt with these items, from here to there.
        """
        rows, parts = [], []
        for row, media, start, end in places:
            for i, item in enumerate(media.items):
                before = 0
                for first, last in item.runs:
                    low, high = max(first, start), min(last, end)
                    if low < high:
                        rows.append(torch.arange(low, high) + (row - start))
                        parts.append(media.rows[i][before + low - first : before + high - first])
                    before += last - first
        embeds: Tensor = self.model.get_input_embeddings()(ids)
        self._deeper = None
        if rows:
            where, what = torch.cat(rows).to(self.device), torch.cat(parts)
            hidden = embeds.shape[2]
            embeds = embeds.clone()
            embeds[0, where] = what[:, :hidden].to(embeds.dtype)
            if self.family.deep:
                mask = torch.zeros(ids.shape, dtype=torch.bool, device=self.device)
                mask[0, where] = True
                order = where.argsort()
                self._deeper = mask, [part[order] for part in torch.split(what[:, hidden:], hidden, dim=1)]
        return embeds

    def _add_deeper(self, _: Any, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Hands the step's deeper embeddings to the text model, past the outer model, which knows no embeddings but those it made."""
        if self._deeper is not None:
            named["visual_pos_masks"], named["deepstack_visual_embeds"] = self._deeper
            self._deeper = None
        return args, named


def tower_layers(base: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The layers of a model that are not its text model's, and the parts of each."""
    texts = [found for name in ("language_model", "text_model", "layers") if (found := getattr(base, name, None))]
    text = {id(module) for found in texts for module in found.modules()}
    for module in base.modules():
        if isinstance(module, torch.nn.ModuleList) and id(module) not in text:
            for layer in module:
                yield layer
                yield from layer.children()


def flat_rows(output: Any) -> Tensor:
    """A tower's output [slots, hidden], whether it came by picture, by crop or as one."""
    if isinstance(output, (list, tuple)):
        return torch.cat([flat_rows(part) for part in output])
    rows: Tensor = output.reshape(-1, output.shape[-1])
    return rows


def wrong_count(name: str, slots: int, rows: int) -> BadRequest:
    return BadRequest(
        f"features: item {name} gives {rows} embeddings, and token_ids has {slots} placeholders for it.", "features"
    )
