"""Pictures of Phi-4-multimodal, for which transformers has no processor that works without torch: crops in high definition.

Source: the tensors of transformers' `Phi4MultimodalImageProcessor`, which the tests compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import define

from scaleout.render.modality import MediaModel

if TYPE_CHECKING:
    from PIL.Image import Image

WHOLE_SLOTS = 256 + 16 + 1
"""Slots of the whole picture, of the ends of its lines, and between it and its crops. They do not depend on settings."""
SMALLEST = 10
"""Pixels. A picture that becomes narrower than that is refused."""


@define(slots=False)
class CropProcessor:
    """Takes the place of an image processor of transformers. `crop`, `patch`: pixels of their sides; `dynamic_hd`: most crops."""

    crop: int
    patch: int
    dynamic_hd: int
    image_mean: Sequence[float]
    image_std: Sequence[float]
    rescale_factor: float

    class valid_kwargs:
        """Arguments of one call."""

        dynamic_hd: int

    @classmethod
    def of(cls, model: MediaModel) -> CropProcessor:
        given = model.preprocessor_config
        size = given.get("size") or {"height": 448}
        half = (0.5, 0.5, 0.5)
        return cls(
            int(size["height"]),
            int(given.get("patch_size") or 14),
            int(given.get("dynamic_hd") or 36),
            given.get("image_mean") or half,
            given.get("image_std") or half,
            float(given.get("rescale_factor") or 1 / 255),
        )

    def __call__(
        self, images: Sequence[Image], return_tensors: None = None, dynamic_hd: int | None = None
    ) -> Mapping[str, Any]:
        """Of one picture: `image_pixel_values` [1, 1 + crops, 3, crop, crop], `image_sizes` [1, 2], `image_attention_mask`
        [1, 1 + crops, patches, patches], `num_img_tokens` [1]. Raises ValueError for shapes that it does not take.
        """
        import numpy as np

        most = self.dynamic_hd if dynamic_hd is None else dynamic_hd
        if type(most) is not int or not 1 <= most <= 256:
            raise ValueError("dynamic_hd should be from 1 to 256")
        columns, rows = self._grid(*images[0].size, most)
        pixels, mask = self._laid_out(images[0], columns, rows)
        crops = _cut(pixels, rows, columns).transpose(0, 1, 4, 2, 3)
        masks = _cut(mask[..., None], rows, columns)[..., 0]
        half = masks[:, :, ::2, ::2]
        slots = WHOLE_SLOTS + int(half.sum()) + int(half[:, 0, :, 0].sum())
        whole = shrink(pixels.transpose(2, 0, 1), self.crop)
        seen = np.ones((1, *masks.shape[2:]), "float32")
        return {
            "image_pixel_values": np.concatenate([whole[None], crops.reshape(-1, 3, self.crop, self.crop)])[None],
            "image_sizes": np.array([pixels.shape[:2]], "int64"),
            "image_attention_mask": np.concatenate([seen, masks.reshape(-1, *masks.shape[2:])])[None],
            "num_img_tokens": [slots],
        }

    def _grid(self, width: int, height: int, most: int) -> tuple[int, int]:
        """How many crops across and down: enough for every pixel, else the grid whose shape is nearest to the picture's."""
        columns, rows = math.ceil(width / self.crop), math.ceil(height / self.crop)
        if columns * rows <= most:
            return columns, rows
        best, least = (1, 1), math.inf
        for grid in grids_of(most):
            off = abs(width / height - grid[0] / grid[1])
            # Of equal shapes the larger one, if the picture would fill more than half of it.
            if off < least or (off == least and width * height > 0.5 * self.crop**2 * math.prod(grid)):
                best, least = grid, off
        return best

    def _laid_out(self, image: Image, columns: int, rows: int) -> tuple[Any, Any]:
        """The picture in the upper left of a white sheet [height, width, 3], in the model's range; which patches show some of it."""
        import numpy as np
        from PIL.Image import Resampling

        sheet = (self.crop * columns, self.crop * rows)
        wide, tall = sheet[0] / image.width, sheet[1] / image.height
        size = (sheet[0], int(image.height * wide)) if wide < tall else (int(image.width * tall), sheet[1])
        if min(size) < SMALLEST:
            raise ValueError("it is too narrow")
        values = np.full((sheet[1], sheet[0], 3), 255, "uint8")
        values[: size[1], : size[0]] = np.asarray(image.resize(size, Resampling.BILINEAR))
        scale = np.float32(1 / self.rescale_factor)
        mean, std = (np.asarray(one, "float32") * scale for one in (self.image_mean, self.image_std))
        side = self.crop // self.patch
        mask = np.ones((side * rows, side * columns), "float32")
        mask[len(mask) - (sheet[1] - size[1]) // self.patch :] = 0
        mask[:, mask.shape[1] - (sheet[0] - size[0]) // self.patch :] = 0
        return (values.astype("float32") - mean) / std, mask


@lru_cache(maxsize=8)
def grids_of(most: int) -> list[tuple[int, int]]:
    """Columns and rows of at most `most` crops, few crops first. Among equally many the order is that of the set that the model's own
    processor fills in this way: it decides where two shapes are equally near.
    """
    grids = {(i, j) for n in range(1, most + 1) for i in range(1, n + 1) for j in range(1, n + 1) if i * j <= most}
    return sorted(grids, key=math.prod)


def _cut(sheet: Any, rows: int, columns: int) -> Any:
    """[height, width, channel] → [rows, columns, height of a crop, width of a crop, channel]."""
    height, width, channels = sheet.shape
    return sheet.reshape(rows, height // rows, columns, width // columns, channels).transpose(0, 2, 1, 3, 4)


def shrink(pixels: Any, side: int) -> Any:
    """[channel, height, width] → [channel, side, side], bicubic between the nearest four, however much smaller it becomes."""
    import numpy as np

    for axis in (1, 2):
        at = (np.arange(side) + 0.5) * (pixels.shape[axis] / side) - 0.5
        first = np.floor(at).astype(int)
        shape = (-1, 1) if axis == 1 else (-1,)
        total: Any = 0
        for tap in range(-1, 3):
            weights = _cubic(np.abs(at - first - tap)).astype("float32").reshape(shape)
            total = total + np.take(pixels, (first + tap).clip(0, pixels.shape[axis] - 1), axis) * weights
        pixels = total
    return pixels


def _cubic(distance: Any) -> Any:
    """The weight of a pixel at this distance, at most 2, of the cubic convolution that torch uses (a = -0.75)."""
    import numpy as np

    near = (1.25 * distance - 2.25) * distance**2 + 1
    far = ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
    return np.where(distance <= 1, near, far)
