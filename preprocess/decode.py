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
from typing import Literal, TypeAlias

import numpy as np
from PIL import ExifTags, Image, ImageColor
from PIL.ImageFile import ImageFile

from vtk.errors import ImageError, UsageError, VtkError
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
# EXIF orientation: whether rows become columns, then the steps (1 or -1) along rows and columns
Turn: TypeAlias = tuple[bool, int, int]
_AS_STORED: Turn = (False, 1, 1)
_TURNS: dict[int, Turn] = {
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
    picture on. device: "gpu" lets nvJPEG decode the usual JPEG files, as `decode_gpu` says. min_side: `decode_reduced`
    may take the shortcut of decoding a JPEG at 1/2, 1/4 or 1/8 of its size as long as both sides keep so many pixels.
    """

    max_pixels: int = DEFAULT_MAX_PIXELS
    allow_truncated: bool = False
    alpha: Literal["drop"] | RGB = "drop"
    min_side: int | None = None
    device: Literal["cpu", "gpu"] = "cpu"

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
        return _decode(source, options, None)[0]
    try:
        return _decode(read_picture(source), options, None)[0]
    except ImageError as error:
        raise ImageError(error.reason, f"{source}: {error.message}", hint=error.hint) from error


def decode_reduced(data: bytes, options: DecodeOptions) -> tuple[RGBImage, tuple[int, int]]:
    """As `decode`, but smaller where `options.min_side` allows it; and the size (H, W) of the whole picture.

    Halving in the frequency domain is not Pillow's filter. Photographs of 1,920 x 1,080 become 320 x 320 by way of 1/2
    with a difference of 0.5 levels of 255 on average and 12 at most, 224 x 224 by way of 1/4 with 0.9 and 18; decoding
    takes 20 to 30 % less, as most of it is Huffman codes, which all have to be read.
    """
    return _decode(data, options, options.min_side)


def upright_rgb(image: Image.Image, options: DecodeOptions = DEFAULT) -> RGBImage:
    """A loaded Pillow picture by the same rule as `decode`; the picture itself is left as it is."""
    rgb = to_rgb(image, None if options.alpha == "drop" else options.alpha)
    return _upright(np.array(rgb), _turn(image))


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


def _decode(data: bytes, options: DecodeOptions, min_side: int | None) -> tuple[RGBImage, tuple[int, int]]:
    name = identify(data)
    _silence_pillow()
    # What follows a complete JPEG is ignored; a cut one is completed by it.
    stream = _Stream(data + _JPEG_END if name == "JPEG" and options.allow_truncated else data)
    with _image_errors(name, data, stream, options), PARSERS[name](stream) as image:
        _check_size(image.size, options.max_pixels)
        stream.opened = True
        stream.strict = not options.allow_truncated
        if name == "JPEG" and (pixels := _decode_jpeg(data, image, options, min_side)) is not None:
            turn, (width, height) = _turn(image), image.size
            return _upright(pixels, turn), (width, height) if turn[0] else (height, width)
        _load(image, stream)
        whole = upright_rgb(image, options)
        return whole, (whole.shape[0], whole.shape[1])


def _decode_jpeg(data: bytes, image: ImageFile, options: DecodeOptions, min_side: int | None) -> RGBImage | None:
    if options.device == "gpu" and _turn(image) == _AS_STORED:
        from vtk.preprocess.decode_gpu import gpu_decoder

        if (pixels := gpu_decoder().decode(data, image)) is not None:
            return pixels
    return decode_jpeg(data, image, min_side)


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
    except VtkError:
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


def _turn(image: Image.Image) -> Turn:
    """How the stored picture is turned upright, from its EXIF block; a broken block does not make it unusable."""
    try:
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1), _AS_STORED)
    except Exception:
        return _AS_STORED


def _upright(stored: RGBImage, turn: Turn) -> RGBImage:
    swapped, down, across = turn
    return np.ascontiguousarray((stored.transpose(1, 0, 2) if swapped else stored)[::down, ::across])
