"""Pictures as callers of the Python API have them: in files, in memory, or decoded already."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from vtk.errors import ImageError, UsageError
from vtk.preprocess.decode import DecodeOptions, decode, upright_rgb

if TYPE_CHECKING:
    from vtk.preprocess.resize import RGBImage

PathLike: TypeAlias = "str | os.PathLike[str]"
ImageLike: TypeAlias = "PathLike | bytes | Image.Image | npt.NDArray[np.uint8]"


def one_picture(image: ImageLike | Sequence[ImageLike]) -> ImageLike:
    """The picture, if it is one. Raises UsageError for anything else, a list too."""
    if isinstance(image, (str, bytes, os.PathLike, Image.Image, np.ndarray)):
        return image
    raise UsageError(
        f"A picture must be a path, bytes, PIL image or uint8 array (height, width, 3), got {type(image).__name__}.",
        hint="Pass several pictures as a list.",
    )


def pixels_of(image: ImageLike, options: DecodeOptions) -> RGBImage:
    """(height, width, 3) uint8; an array is passed on. Raises UsageError for no picture, ImageError for a bad one."""
    picture = one_picture(image)
    if isinstance(picture, np.ndarray):
        return picture
    if isinstance(picture, Image.Image):
        return _pixels_of_pil(picture, options)
    return decode(picture if isinstance(picture, bytes) else Path(picture), options)


@contextmanager
def told_which(which: str) -> Iterator[None]:
    """Begin the message of an error with which of the pictures it is about."""
    try:
        yield
    except ImageError as error:
        raise ImageError(error.reason, f"{which}: {error.message}", hint=error.hint) from error
    except UsageError as error:
        raise UsageError(f"{which}: {error.message}", hint=error.hint) from error


def _pixels_of_pil(image: Image.Image, options: DecodeOptions) -> RGBImage:
    try:
        return upright_rgb(image, options)
    except ImageError:
        raise
    except Exception as error:  # an opened file is read only now, and damaged ones make Pillow raise anything
        raise ImageError("corrupt", f"The PIL image cannot be loaded: {error}.") from error
