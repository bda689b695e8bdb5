from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from vtk.errors import ImageError, UsageError
from vtk.preprocess.decode import DecodeOptions, decode, parse_alpha

WHITE = DecodeOptions(alpha=(255, 255, 255))
MODES = ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "I", "I;16", "I;16B", "F"]
Encode = Callable[..., bytes]


def _convert(photo: Image.Image, mode: str) -> Image.Image:
    match mode:
        case "I;16" | "I;16B" | "I":
            return Image.fromarray(np.asarray(photo.convert("L")).astype(np.int32) * 257).convert(mode)
        case "P" | "PA":
            return photo.convert("P", palette=Image.Palette.ADAPTIVE).convert(mode)
        case "LAB":
            return Image.new("LAB", photo.size, (53, 80, 67))
    return photo.convert(mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [DecodeOptions(), WHITE], ids=["drop", "white"])
def test_case_v43_every_mode_becomes_rgb_uint8(
    encode: Encode, photo: Image.Image, mode: str, options: DecodeOptions
) -> None:
    stored = encode(_convert(photo, mode), "TIFF")
    picture = decode(stored, options)
    assert (picture.shape, picture.dtype) == ((40, 60, 3), np.uint8)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "P", "I;16", "I;16B", "I"])
def test_opaque_pictures_keep_their_looks(encode: Encode, photo: Image.Image, mode: str) -> None:
    gray = mode in ("L", "LA", "I;16", "I;16B", "I")
    expected = np.asarray(photo.convert("L").convert("RGB") if gray else photo).astype(int)
    picture = decode(encode(_convert(photo, mode), "TIFF"))
    assert np.abs(picture - expected).mean() <= (4 if mode == "P" else 0)


def test_case_v43_alpha_is_dropped_unless_a_color_is_given(encode: Encode) -> None:
    stored = encode(Image.new("RGBA", (8, 6), (255, 0, 0, 0)), "PNG")
    assert (decode(stored) == [255, 0, 0]).all()
    assert (cv2.imdecode(np.frombuffer(stored, np.uint8), cv2.IMREAD_COLOR) == [0, 0, 255]).all()
    assert (decode(stored, WHITE) == 255).all()
    assert (decode(stored, DecodeOptions(alpha=(1, 2, 3))) == [1, 2, 3]).all()


@pytest.mark.parametrize("name", ["PNG", "WebP", "TIFF", "AVIF"])
def test_half_transparent_pictures_are_blended_with_the_color(encode: Encode, name: str) -> None:
    options = {"lossless": True, "exact": True} if name == "WebP" else {}
    stored = encode(Image.new("RGBA", (8, 6), (200, 100, 0, 128)), name, **options)
    assert np.abs(decode(stored).astype(int) - [200, 100, 0]).max() <= 2
    assert np.abs(decode(stored, WHITE).astype(int) - [227, 177, 127]).max() <= 2


@pytest.mark.parametrize(("name", "transparency"), [("PNG", 1), ("PNG", b"\xff\x00\xff"), ("GIF", 1)])
def test_transparent_palette_entries(encode: Encode, name: str, transparency: int | bytes) -> None:
    indexed = Image.fromarray(np.array([[0, 1, 2]], np.uint8)).convert("P")
    indexed.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    stored = encode(indexed, name, transparency=transparency)
    assert decode(stored).tolist() == [[[10, 20, 30], [40, 50, 60], [70, 80, 90]]]
    assert decode(stored, WHITE).tolist() == [[[10, 20, 30], [255, 255, 255], [70, 80, 90]]]


def test_one_transparent_color_without_an_alpha_channel(encode: Encode) -> None:
    gray = Image.fromarray(np.array([[5, 77, 200]], np.uint8))
    assert decode(encode(gray, "PNG", transparency=77), WHITE)[0, :, 0].tolist() == [5, 255, 200]
    assert decode(encode(gray, "PNG", transparency=77))[0, :, 0].tolist() == [5, 77, 200]
    color = gray.convert("RGB")
    assert decode(encode(color, "PNG", transparency=(77, 77, 77)), WHITE)[0, :, 0].tolist() == [5, 255, 200]
    wide = Image.fromarray(np.array([[5, 77 << 8, 200 << 8]], np.uint16))
    assert decode(encode(wide, "PNG", transparency=77 << 8), WHITE)[0, :, 0].tolist() == [0, 255, 200]
    assert decode(encode(wide, "PNG", transparency=77 << 8))[0, :, 0].tolist() == [0, 77, 200]


def _ramp() -> npt.NDArray[np.uint16]:
    return np.tile((np.arange(256, dtype=np.uint16) * 257), (4, 1))


@pytest.mark.parametrize(("name", "mode"), [("PNG", "I;16"), ("TIFF", "I;16"), ("TIFF", "I;16B"), ("TIFF", "I")])
def test_case_v42_a_16_bit_ramp_keeps_256_levels(encode: Encode, name: str, mode: str) -> None:
    ramp = Image.fromarray(_ramp().astype(np.int32)).convert(mode)
    picture = decode(encode(ramp, name))
    np.testing.assert_array_equal(picture, np.repeat((_ramp() >> 8).astype(np.uint8)[..., None], 3, axis=2))
    assert len(np.unique(picture)) == 256


def test_case_v42_16_bit_color_is_scaled_as_well() -> None:
    color = np.stack([_ramp(), _ramp()[:, ::-1], _ramp() // 2], axis=2)
    for suffix in (".png", ".tiff"):
        ok, stored = cv2.imencode(suffix, color[..., ::-1])
        assert ok
        np.testing.assert_array_equal(decode(stored.tobytes()), (color >> 8).astype(np.uint8))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.25, 0.5, 1.0], [0, 64, 128, 255]),
        ([0.0, 1.4, 127.6, 255.0], [0, 1, 128, 255]),
        ([0.0, 256.0, 32768.0, 65535.0], [0, 1, 128, 255]),
        ([0.0, 0.0, 0.0, 0.0], [0, 0, 0, 0]),
    ],
)
def test_floats_are_scaled_by_the_range_that_holds_them(
    encode: Encode, values: list[float], expected: list[int]
) -> None:
    picture = decode(encode(Image.fromarray(np.array([values], np.float32)), "TIFF"))
    assert picture[0, :, 0].tolist() == expected


@pytest.mark.parametrize("odd", [np.nan, np.inf, -0.5, 70000.0])
def test_floats_without_a_known_scale_are_refused(encode: Encode, odd: float) -> None:
    with pytest.raises(ImageError, match="no known scale") as caught:
        decode(encode(Image.fromarray(np.array([[0.5, odd]], np.float32)), "TIFF"))
    assert caught.value.reason == "unsupported"


def test_case_v44_cmyk_red_is_red(encode: Encode) -> None:
    stored = encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    assert np.abs(decode(stored).astype(int) - [255, 0, 0]).max() <= 2
    by_opencv = cv2.imdecode(np.frombuffer(stored, np.uint8), cv2.IMREAD_COLOR)
    assert np.abs(by_opencv[..., ::-1].astype(int) - decode(stored)).max() <= 2


def test_case_v43_ycck_is_converted_like_cmyk(encode: Encode) -> None:
    """Four channels as Photoshop stores them: luma and chroma of the inverted inks, and black."""
    stored = encode(Image.new("CMYK", (16, 16), (255 - 179, 255 - 171, 255, 0)), "JPEG", quality=100)
    marker = stored.index(b"Adobe\0") + 11
    assert stored[marker] == 0
    ycck = stored[:marker] + b"\2" + stored[marker + 1 :]
    assert np.abs(decode(ycck).astype(int) - [255, 0, 0]).max() <= 2
    by_opencv = cv2.imdecode(np.frombuffer(ycck, np.uint8), cv2.IMREAD_COLOR)
    assert np.abs(by_opencv[..., ::-1].astype(int) - decode(ycck)).max() <= 2


def test_one_bit_pictures_are_black_and_white(encode: Encode) -> None:
    bits = Image.fromarray(np.array([[True, False]]))
    assert decode(encode(bits, "PNG")).tolist() == [[[255] * 3, [0] * 3]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("drop", "drop"), ("white", (255, 255, 255)), ("#102030", (16, 32, 48)), ("#10203040", (16, 32, 48))],
)
def test_alpha_is_read_as_css_writes_colors(text: str, expected: object) -> None:
    assert parse_alpha(text) == expected


def test_an_unknown_color_says_what_to_write() -> None:
    with pytest.raises(UsageError, match=r"no color.*#rrggbb"):
        parse_alpha("whitish")
