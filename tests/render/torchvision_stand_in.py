"""What transformers' processors call of torchvision, by Pillow and torch: they are compared with ours where it is not installed."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.render.mm_asking import torchvision_seems_there

BILINEAR, BICUBIC = 2, 3


class StandIn:
    """Torch's own resizing of bytes differs from Pillow's by one of 255 in a few of 1,000 bytes, rarely by two."""

    InterpolationMode = SimpleNamespace(BILINEAR=BILINEAR, BICUBIC=BICUBIC, LANCZOS=1)

    @staticmethod
    def resize(image: Any, size: Any, interpolation: int = BILINEAR, antialias: bool = True) -> Any:
        import numpy as np
        import torch
        from PIL import Image

        if image.is_floating_point():
            mode = {BILINEAR: "bilinear", BICUBIC: "bicubic"}[interpolation]
            return torch.nn.functional.interpolate(image[None], size=list(size), mode=mode, antialias=antialias)[0]
        frames = image.reshape(-1, *image.shape[-3:]).permute(0, 2, 3, 1).numpy()
        resized = [np.asarray(Image.fromarray(one).resize((size[1], size[0]), interpolation)) for one in frames]
        return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).reshape(*image.shape[:-2], *size)

    @staticmethod
    def pad(image: Any, padding: Any, fill: Any) -> Any:
        import torch

        left, top, right, bottom = padding
        return torch.nn.functional.pad(image, (left, right, top, bottom), value=fill[0])

    @staticmethod
    def normalize(image: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
        import torch

        return (image - torch.as_tensor(mean)[:, None, None]) / torch.as_tensor(std)[:, None, None]

    @staticmethod
    def pil_to_tensor(image: Any) -> Any:
        import numpy as np
        import torch

        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    @staticmethod
    def grayscale_to_rgb(image: Any) -> Any:
        return image


def stand_in(patch: pytest.MonkeyPatch, module: str) -> ModuleType:
    """A module of transformers with processors in it, ready to be used."""
    from transformers import image_processing_backends, video_processing_utils

    with torchvision_seems_there():
        found = importlib.import_module(module)
    for place in (image_processing_backends, video_processing_utils, found):
        patch.setattr(place, "tvF", StandIn, raising=False)
    modes = {BILINEAR: BILINEAR, BICUBIC: BICUBIC}
    patch.setattr(image_processing_backends, "pil_torch_interpolation_mapping", modes, raising=False)
    return found
