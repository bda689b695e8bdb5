"""Encoded bytes to one upright RGB picture, by one rule for every format."""

from __future__ import annotations

import io
import logging
import re
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import ExifTags, Image, ImageColor
from PIL.ImageFile import ImageFile

from vtk.errors import ImageError, UsageError
from vtk.preprocess.color import RGB, to_rgb
from vtk.preprocess.fast_jpeg import decode_jpeg
from vtk.preprocess.formats import PARSERS, ends_early, identify
from vtk.preprocess.resize import RGBImage

# Where Pillow starts to warn of a decompression bomb: a quarter of a gibibyte of RGB.
DEFAULT_MAX_PIXELS = 89_478_485
MAX_FILE_BYTES = 1 << 30

# Without a handler Python prints what Pillow logs about damaged files, on top of the error raised here.
logging.getLogger("PIL").addHandler(logging.NullHandler())

_JPEG_END = b"\xff\xd9"
# EXIF orientation: whether rows become columns, then whether rows and columns are reversed
_TURNS = {
    2: (False, 1, -1),
    3: (False, -1, -1),
    4: (False, -1, 1),
    5: (True, 1, 1),
    6: (True, 1, -1),
    7: (True, -1, -1),
    8: (True, -1, 1),
}


@dataclass(frozen=True)
class DecodeOptions:
    """What a user may decide about decoding.

    max_pixels: refuse more than this, told from the header. allow_truncated: take the part that a cut file holds; the
    rest has one color, mostly black or gray. alpha: "drop" as the official pipelines do, or an RGB color to lay the
    picture on.
    """

    max_pixels: int = DEFAULT_MAX_PIXELS
    allow_truncated: bool = False
    alpha: Literal["drop"] | RGB = "drop"

    def __post_init__(self) -> None:
        if self.max_pixels < 1:
            raise UsageError(f"The pixel limit must be at least 1, got {self.max_pixels}.")


DEFAULT = DecodeOptions()


def parse_alpha(text: str) -> Literal["drop"] | RGB:
    """`--alpha`: "drop", or a color as CSS writes it (`white`, `#808080`, `rgb(0, 0, 0)`)."""
    if text == "drop":
        return "drop"
    try:
        return ImageColor.getrgb(text)[:3]
    except ValueError as error:
        raise UsageError(f"'{text}' is no color.", hint="Use drop, a name such as white, or #rrggbb.") from error


def decode(source: bytes | Path, options: DecodeOptions = DEFAULT) -> RGBImage:
    """The first frame of a JPEG, PNG, WebP, TIFF, BMP, GIF or AVIF file as RGB uint8 (H, W, 3), C-contiguous.

    EXIF orientation is applied, so H and W are those of the displayed picture; `color.to_rgb` says how other modes
    become RGB. Every failure is an ImageError with its `reason`. Safe to call from several threads.
    """
    if isinstance(source, bytes):
        return _decode(source, options)
    try:
        return _decode(read_picture(source), options)
    except ImageError as error:
        raise ImageError(error.reason, f"{source}: {error.message}", hint=error.hint) from error


def upright_rgb(image: Image.Image, options: DecodeOptions = DEFAULT) -> RGBImage:
    """A loaded Pillow picture by the same rule as `decode`; the picture itself is left as it is."""
    rgb = to_rgb(image, None if options.alpha == "drop" else options.alpha)
    return _upright(np.array(rgb), image)


def read_picture(path: Path) -> bytes:
    """All bytes of a regular file of at most 1 GiB. Raises ImageError: unreadable, too_large.

    Pipes and devices are refused before they are opened: reading one could wait forever.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ImageError("unreadable", "This is not a regular file.")
        if status.st_size > MAX_FILE_BYTES:
            raise ImageError("too_large", f"The file has {status.st_size:,} bytes; the limit is {MAX_FILE_BYTES:,}.")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ImageError("unreadable", f"The file cannot be read: {reason}.") from error


def _decode(data: bytes, options: DecodeOptions) -> RGBImage:
    name = identify(data)
    _silence_pillow()
    # What follows a complete JPEG is ignored; a cut one is completed by it.
    stream = _Stream(data + _JPEG_END if name == "JPEG" and options.allow_truncated else data)
    with _image_errors(name, data, stream, options), PARSERS[name](stream) as image:
        _check_size(image.size, options.max_pixels)
        stream.opened = True
        stream.strict = not options.allow_truncated
        if name == "JPEG" and (pixels := decode_jpeg(data, image)) is not None:
            return _upright(pixels, image)
        _load(image, stream)
        return upright_rgb(image, options)


class _Stream(io.BytesIO):
    """Remembers whether a parser wanted more than there is, and when `strict` refuses to go on.

    Pillow's own switch for cut files is global to the process, and other libraries set it.
    """

    opened = False
    strict = False
    exhausted = False

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        # Decoders fetch whole blocks and so meet the end of every file; parsers ask for what must be there.
        wanted = 1 if self.opened else (size or 0)
        if size != 0 and len(data) < wanted:
            self.exhausted = True
            if self.strict:
                raise OSError("unexpected end of file")
        return data


def _silence_pillow() -> None:
    """Keep Pillow's remarks on odd metadata from the user: they concern pictures that decode.

    Done per call because test runners and others replace the filters; a local `catch_warnings` is not thread-safe.
    """
    entry = ("ignore", None, UserWarning, re.compile(r"PIL\."), 0)
    if entry not in warnings.filters:
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


@contextmanager
def _image_errors(name: str, data: bytes, stream: _Stream, options: DecodeOptions) -> Iterator[None]:
    """Whatever a parser raises on damaged input, as ImageError."""
    try:
        yield
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError) as error:
        bound = "Pillow bounds TIFF, WebP and GIF by PIL.Image.MAX_IMAGE_PIXELS; PNG and JPEG are free of it."
        raise ImageError("too_large", f"The {name} picture does not fit: {error}", hint=bound) from error
    except Exception as error:
        if stream.exhausted or ends_early(name, data):
            hint = None if options.allow_truncated else "Copy it again, or take what it holds with --allow-truncated."
            raise ImageError("truncated", f"The {name} file ends before the picture does.", hint=hint) from error
        raise ImageError("corrupt", f"The {name} data is damaged: {error}.") from error


def _check_size(size_wh: tuple[int, int], max_pixels: int) -> None:
    width, height = size_wh
    if width * height > max_pixels:
        raise ImageError(
            "too_large",
            f"The picture has {width} x {height} = {width * height:,} pixels; the limit is {max_pixels:,}.",
            hint="If the file is to be trusted, raise --max-pixels.",
        )


def _load(image: ImageFile, stream: _Stream) -> None:
    """Decode the pixels; of a cut file, keep what was decoded if that is allowed."""
    try:
        image.load()
    except Exception:
        if stream.strict or not stream.exhausted:
            raise
        image.tile = []
        image.load()


def _upright(stored: RGBImage, image: Image.Image) -> RGBImage:
    """The stored pixels of `image`, turned as its EXIF block says; a broken block does not make it unusable."""
    try:
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        turn = None
    if turn is None:
        return stored
    swapped, down, across = turn
    return np.ascontiguousarray((stored.transpose(1, 0, 2) if swapped else stored)[::down, ::across])
