"""Resampling of uint8 pictures, pixel for pixel as the official pipelines do it."""

from __future__ import annotations

from typing import TypeAlias

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from vtk.preprocess.recipe import Interpolation

RGBImage: TypeAlias = npt.NDArray[np.uint8]

_PILLOW_FILTERS = {"pil_bilinear": Image.Resampling.BILINEAR, "pil_bicubic": Image.Resampling.BICUBIC}


def resize(picture: RGBImage, size_hw: tuple[int, int], interpolation: Interpolation) -> RGBImage:
    """RGB uint8 (h, w, 3) to (*size_hw, 3). `pil_*` widens its filter to shrink (antialias), `cv2_linear` does not."""
    if picture.shape[:2] == size_hw:
        return picture
    if interpolation == "cv2_linear":
        return np.asarray(cv2.resize(picture, size_hw[::-1], interpolation=cv2.INTER_LINEAR), np.uint8)
    resized = Image.fromarray(picture).resize(size_hw[::-1], _PILLOW_FILTERS[interpolation])
    return np.asarray(resized)
