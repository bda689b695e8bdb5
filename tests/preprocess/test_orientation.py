import struct
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from vtk.preprocess.decode import decode

ORIENTATION = 274
# What a viewer must do to the stored array, from the EXIF specification (row 0 is "top", "left side", ...).
TO_UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
    7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda a: a.transpose(1, 0, 2)[::-1],
}


def _exif(orientation: object) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def _block() -> Image.Image:
    """24 x 16, black, with a white block of 6 x 4 at the top left."""
    stored = Image.new("RGB", (24, 16))
    stored.paste((255, 255, 255), (0, 0, 6, 4))
    return stored


def test_case_v41_orientation_6_moves_the_block_to_the_right(encode: Callable[..., bytes]) -> None:
    picture = decode(encode(_block(), "JPEG", quality=100, subsampling=0, exif=_exif(6)))
    assert picture.shape == (24, 16, 3)
    white = picture[..., 0] > 128
    rows, columns = np.nonzero(white)
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == (12, 15, 0, 5)
    assert white.sum() == 4 * 6


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["PNG", "JPEG", "WebP", "TIFF", "AVIF"])
def test_every_orientation_in_every_format_that_has_one(
    encode: Callable[..., bytes], photo: Image.Image, orientation: int, name: str
) -> None:
    options = {"JPEG": {"quality": 95}, "WebP": {"lossless": True}, "AVIF": {"quality": 95}}.get(name, {})
    plain = decode(encode(photo, name, **options))
    turned = decode(encode(photo, name, exif=_exif(orientation), **options))
    np.testing.assert_array_equal(turned, TO_UPRIGHT[orientation](plain))
    assert turned.flags.c_contiguous
    assert turned.flags.writeable


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_orientation_holds_for_every_mode(encode: Callable[..., bytes], photo: Image.Image, mode: str) -> None:
    picture = photo.convert("I").convert(mode) if mode == "I;16" else photo.convert(mode)
    plain = decode(encode(picture, "PNG"))
    np.testing.assert_array_equal(decode(encode(picture, "PNG", exif=_exif(8))), TO_UPRIGHT[8](plain))


@pytest.mark.parametrize(
    ("kind", "count", "value"),
    [(3, 1, b"\0\0"), (3, 1, b"\t\0"), (3, 1, b"\xff\xff"), (2, 2, b"6\0"), (7, 1, b"\6")],
    ids=["0", "9", "65535", "text", "undefined"],
)
def test_a_meaningless_orientation_is_ignored(
    encode: Callable[..., bytes], photo: Image.Image, kind: int, count: int, value: bytes
) -> None:
    entry = struct.pack("<HHHI", 1, ORIENTATION, kind, count) + value.ljust(4, b"\0") + bytes(4)
    stored = encode(photo, "PNG", exif=b"Exif\0\0II*\0\x08\0\0\0" + entry)
    np.testing.assert_array_equal(decode(stored), np.asarray(photo))


@pytest.mark.parametrize(
    "block",
    [
        b"Exif\0\0",
        b"Exif\0\0garbage that is no TIFF header",
        b"Exif\0\0II*\0\xff\xff\xff\x7f",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x01\x12" * 30,
        b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0\xff\xff\xff\xff\x06",
        bytes(60000),
    ],
)
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WebP"])
def test_broken_exif_does_not_fail_the_file(
    encode: Callable[..., bytes], photo: Image.Image, block: bytes, name: str
) -> None:
    np.testing.assert_array_equal(decode(encode(photo, name, exif=block)), decode(encode(photo, name)))


def test_exif_that_image_magick_stores_as_text_in_png_is_read(encode: Callable[..., bytes], photo: Image.Image) -> None:
    data = _exif(6).tobytes()
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", f"\nexif\n{len(data):8}\n{data.hex()}\n", zip=True)
    np.testing.assert_array_equal(decode(encode(photo, "PNG", pnginfo=text)), TO_UPRIGHT[6](np.asarray(photo)))
