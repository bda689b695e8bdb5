"""From a decoded picture to the network input, as a recipe says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vtk.errors import ImageError, UsageError
from vtk.kernels.resize_normalize.cpu import available, byte_values, resize_normalize
from vtk.preprocess.geometry import Geometry, geometry_for
from vtk.preprocess.recipe import Recipe
from vtk.preprocess.resize import RGBImage, resize

# A strip of 1 x 100,000 pixels would become 256 x 25,600,000 before its center is cut out.
MAX_RESIZED_PIXELS = 1 << 27


@dataclass(frozen=True, eq=False)
class Preprocessed:
    """One picture ready for the network: tensor (3, H, W) float32, C-contiguous, and how to map its results back."""

    tensor: npt.NDArray[np.float32]
    geometry: Geometry


def preprocess(picture: RGBImage, recipe: Recipe) -> Preprocessed:
    """RGB uint8 (h, w, 3) to a fresh tensor; see `preprocess_into`."""
    tensor = np.empty((3, *recipe.size_hw), np.float32)
    return Preprocessed(tensor, preprocess_into(picture, recipe, tensor))


def preprocess_into(picture: RGBImage, recipe: Recipe, out: npt.NDArray[np.float32]) -> Geometry:
    """Write the network input of RGB uint8 (h, w, 3) into `out` (3, *recipe.size_hw) float32, say one row of a batch.

    Equal, bit for bit, to the resize of `recipe`, torchvision's ToTensor and its Normalize. Raises UsageError for a
    picture of another layout and ImageError (too_large) where a center crop would enlarge a strip beyond all bounds.
    """
    if out.shape != (3, *recipe.size_hw) or out.dtype != np.float32:
        raise ValueError(f"expected out (3, {recipe.size_hw}) float32, got {out.shape} {out.dtype}")
    geometry = check_placement(picture, recipe)
    values = byte_values(recipe.mean, recipe.std)
    if recipe.interpolation != "cv2_linear" and available():
        pixels, place = np.ascontiguousarray(picture), (geometry.resized_hw, geometry.offset_xy)
        resize_normalize(pixels, *place, recipe.interpolation, out, values, recipe.pad_value)
    else:
        _normalize(_place(picture, recipe, geometry), values, out)
    return geometry


def check_placement(picture: RGBImage, recipe: Recipe) -> Geometry:
    """Where the picture will lie in the network input. Raises as `preprocess_into`."""
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise UsageError(
            f"Expected a picture as RGB uint8 (height, width, 3), got {picture.dtype} {picture.shape}.",
            hint="Pass a path, encoded bytes, or convert the array first.",
        )
    geometry = geometry_for(recipe, (picture.shape[0], picture.shape[1]))
    (source_height, source_width), (resized_height, resized_width) = geometry.source_hw, geometry.resized_hw
    if resized_height * resized_width > MAX_RESIZED_PIXELS:
        raise ImageError(
            "too_large",
            f"A center crop would first resize this picture of {source_width} x {source_height} pixels to "
            f"{resized_width} x {resized_height}.",
            hint="Cut the strip into pieces first.",
        )
    return geometry


def _place(picture: RGBImage, recipe: Recipe, geometry: Geometry) -> RGBImage:
    """Resize, then pad or crop to the input size."""
    resized_height, resized_width = geometry.resized_hw
    resized = resize(picture, geometry.resized_hw, recipe.interpolation)
    (left, top), (height, width) = geometry.offset_xy, geometry.input_hw
    if recipe.resize != "letterbox":
        return resized[-top : -top + height, -left : -left + width]
    canvas = np.full((height, width, 3), recipe.pad_value, np.uint8)
    canvas[top : top + resized_height, left : left + resized_width] = resized
    return canvas


def _normalize(pixels: RGBImage, values: npt.NDArray[np.float32], out: npt.NDArray[np.float32]) -> None:
    for plane, table, channel in zip(out, values, pixels.transpose(2, 0, 1), strict=True):
        np.take(table, channel, out=plane)
