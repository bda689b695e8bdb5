"""Any mode that Pillow opens to RGB of 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vtk.errors import ImageError

RGB = tuple[int, int, int]

_WIDE_GRAY = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")


def to_rgb(image: Image.Image, background: RGB | None) -> Image.Image:
    """A loaded picture of any mode as mode RGB.

    Alpha, or a transparent color, is dropped as `Image.convert("RGB")` does in the official pipelines; with a
    `background` the picture is laid on it. Samples of 16 bits keep their high byte (`>> 8`, as OpenCV does; Pillow
    itself clips them to white). Floats are taken by their largest value as 0..1, 0..255 or 0..65535. Color profiles
    are not applied. Raises ImageError (unsupported) for samples that none of these scales holds.
    """
    if background is None and "transparency" in image.info:
        image = image.copy()
        del image.info["transparency"]
    if image.mode in _WIDE_GRAY:
        image = _narrow(image, image.info.get("transparency"))
    if background is None or not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    canvas = Image.new("RGBA", image.size, background)
    canvas.alpha_composite(image.convert("RGBA"))
    return canvas.convert("RGB")


def _narrow(image: Image.Image, transparent_key: int | None) -> Image.Image:
    """Wide gray samples as L, or as LA where one sample value stands for transparent."""
    wide = np.asarray(image)
    gray = Image.fromarray(_to_uint8(wide))
    if transparent_key is None:
        return gray
    return Image.merge("LA", (gray, Image.fromarray(np.where(wide == transparent_key, 0, 255).astype(np.uint8))))


def _to_uint8(wide: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    lowest, highest = float(wide.min()), float(wide.max())
    if not 0 <= lowest <= highest <= 65535:  # also true of NaN
        raise ImageError(
            "unsupported",
            f"Gray samples from {lowest:g} to {highest:g} have no known scale.",
            hint="Convert the picture to 8 or 16 bits.",
        )
    if wide.dtype.kind != "f":
        wide = wide >> 8
    elif highest <= 255:
        wide = np.rint(wide * 255 if highest <= 1 else wide)
    else:
        wide = wide / 256
    return wide.astype(np.uint8)
