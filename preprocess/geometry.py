"""Where a picture lies in the network input, and the only code that maps coordinates between the two.

Coordinates are continuous and in pixels: (0, 0) is the outer corner of the top left pixel, (width, height) that of the
bottom right one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vtk.preprocess.recipe import Recipe

F = TypeVar("F", bound=np.floating)


@dataclass(frozen=True)
class Geometry:
    """The affine map `x_input = x_source * scale + offset` of one picture, and the resize behind it.

    source_hw: the upright picture. input_hw: the network input. resized_hw: the whole picture after the resize, which
    is then laid at `offset_xy` (whole pixels: positive leaves a border, negative cuts off). scale_xy: positive.
    """

    source_hw: tuple[int, int]
    input_hw: tuple[int, int]
    resized_hw: tuple[int, int]
    scale_xy: tuple[float, float]
    offset_xy: tuple[int, int]

    def of_whole(self, source_hw: tuple[int, int]) -> Geometry:
        """The same place in the input for the whole picture, where `self.source_hw` was a smaller copy of it."""
        (height, width), (copy_height, copy_width) = source_hw, self.source_hw
        scale_x, scale_y = self.scale_xy
        return replace(
            self, source_hw=source_hw, scale_xy=(scale_x * copy_width / width, scale_y * copy_height / height)
        )

    def points_to_input(self, xy: npt.NDArray[F]) -> npt.NDArray[F]:
        """(..., 2) source pixels to input pixels."""
        return self._to_input(xy, columns=2)

    def points_to_source(self, xy: npt.NDArray[F]) -> npt.NDArray[F]:
        """(..., 2) input pixels to source pixels, not clipped."""
        return self._to_source(xy, columns=2)

    def boxes_to_input(self, xyxy: npt.NDArray[F]) -> npt.NDArray[F]:
        """(..., 4) xyxy in source pixels to input pixels."""
        return self._to_input(xyxy, columns=4)

    def boxes_to_source(self, xyxy: npt.NDArray[F]) -> npt.NDArray[F]:
        """(..., 4) xyxy in input pixels to source pixels, not clipped."""
        return self._to_source(xyxy, columns=4)

    def _to_input(self, values: npt.NDArray[F], *, columns: int) -> npt.NDArray[F]:
        scale, offset = self._constants(values, columns)
        mapped: npt.NDArray[F] = values * scale + offset
        return mapped

    def _to_source(self, values: npt.NDArray[F], *, columns: int) -> npt.NDArray[F]:
        scale, offset = self._constants(values, columns)
        mapped: npt.NDArray[F] = (values - offset) / scale
        return mapped

    def _constants(self, values: npt.NDArray[F], columns: int) -> tuple[npt.NDArray[F], npt.NDArray[F]]:
        if values.shape[-1:] != (columns,):
            raise ValueError(f"expected (..., {columns}) coordinates, got {values.shape}")
        pairs = columns // 2
        return np.array(self.scale_xy * pairs, values.dtype), np.array(self.offset_xy * pairs, values.dtype)


def geometry_for(recipe: Recipe, source_hw: tuple[int, int]) -> Geometry:
    """How `recipe` places a picture of `source_hw` pixels (both at least 1)."""
    if min(source_hw) < 1:
        raise ValueError(f"source_hw must be positive, got {source_hw}")
    if recipe.resize == "letterbox":
        return _letterbox(recipe, source_hw)
    resized_hw = recipe.size_hw if recipe.resize == "stretch" else _cover(recipe, source_hw)
    # torchvision.transforms.functional.center_crop rounds halves to even, as Python's round does.
    top, left = (round((full - kept) / 2) for full, kept in zip(resized_hw, recipe.size_hw, strict=True))
    scale_xy = (resized_hw[1] / source_hw[1], resized_hw[0] / source_hw[0])
    return Geometry(source_hw, recipe.size_hw, resized_hw, scale_xy, (-left, -top))


def _letterbox(recipe: Recipe, source_hw: tuple[int, int]) -> Geometry:
    """Ultralytics `LetterBox(auto=False, center=True)`; its `scale_boxes` maps back by the same gain on both axes."""
    (height, width), (input_height, input_width) = source_hw, recipe.size_hw
    gain = min(input_height / height, input_width / width)
    if not recipe.scale_up:
        gain = min(gain, 1.0)
    resized_hw = (max(1, round(height * gain)), max(1, round(width * gain)))
    # The 0.1 decides odd borders: the smaller half goes to the top and left.
    top = round((input_height - resized_hw[0]) / 2 - 0.1)
    left = round((input_width - resized_hw[1]) / 2 - 0.1)
    return Geometry(source_hw, recipe.size_hw, resized_hw, (gain, gain), (left, top))


def _cover(recipe: Recipe, source_hw: tuple[int, int]) -> tuple[int, int]:
    """Size after the resize of timm's `transforms_imagenet_eval`, which rounds square inputs differently."""
    (height, width), target = source_hw, [math.floor(size / recipe.crop_fraction) for size in recipe.size_hw]
    if target[0] == target[1]:
        short, long = sorted(source_hw)
        longer = int(target[0] * long / short)
        return (target[0], longer) if height <= width else (longer, target[0])
    ratio = min(height / target[0], width / target[1])
    return round(height / ratio), round(width / ratio)
