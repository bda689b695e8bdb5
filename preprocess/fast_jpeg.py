"""The usual JPEG files by libjpeg-turbo directly: the same pixels as Pillow's, which carries the same library."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL.ImageFile import ImageFile

FACTORS = (8, 4, 2, 1)


def decode_jpeg(data: bytes, image: ImageFile, min_side: int | None = None) -> npt.NDArray[np.uint8] | None:
    """RGB (h, w, 3) as stored, of a file whose header Pillow has parsed as `image`; None where Pillow shall decide.

    With `min_side`, at the smallest of 1/8, 1/4, 1/2 and 1/1 of its size (rounded up) of which both sides have at least
    so many pixels.

    That is for CMYK and YCCK, for sampling factors that have no name, and for everything that libjpeg has to say
    anything about: cut or damaged data, and what it takes for such. Errors and salvaged pixels are so always Pillow's.
    """
    if image.mode not in ("RGB", "L"):
        return None
    sizes = {factor: tuple(-(-side // factor) for side in image.size) for factor in FACTORS}
    factor = next((f for f in FACTORS if min(sizes[f]) >= min_side), 1) if min_side is not None else 1
    width, height = sizes[factor]
    try:
        pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(
            data, "RGB", min_height=height, min_width=width, min_factor=factor, strict=True
        )
    except ValueError:
        return None
    return pixels if pixels.shape[:2] == (height, width) else None
