"""The usual JPEG files by libjpeg-turbo directly: the same pixels as Pillow's, which carries the same library."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL.ImageFile import ImageFile


def decode_jpeg(data: bytes, image: ImageFile) -> npt.NDArray[np.uint8] | None:
    """RGB (h, w, 3) as stored, of a file whose header Pillow has parsed as `image`; None where Pillow shall decide.

    That is for CMYK and YCCK, for sampling factors that have no name, and for everything that libjpeg has to say
    anything about: cut or damaged data, and what it takes for such. Errors and salvaged pixels are so always Pillow's.
    """
    if image.mode not in ("RGB", "L"):
        return None
    try:
        pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB", strict=True)
    except ValueError:
        return None
    return pixels if pixels.shape[1::-1] == image.size else None
