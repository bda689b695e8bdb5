"""JPEG by libjpeg-turbo and by Pillow: equal pixels, and equal reasons where there are none."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from vtk.errors import ImageError
from vtk.preprocess import decode as decoding
from vtk.preprocess.decode import DecodeOptions, decode, decode_reduced
from vtk.preprocess.geometry import geometry_for
from vtk.preprocess.recipe import Recipe
from vtk.preprocess.resize import resize

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
CUT = DecodeOptions(allow_truncated=True)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every JPEG that is decoded from now on, whether Pillow was not needed."""
    taken: list[bool] = []
    original = decoding.decode_jpeg

    def noted(*args: Any) -> Pixels | None:
        pixels = original(*args)
        taken.append(pixels is not None)
        return pixels

    monkeypatch.setattr(decoding, "decode_jpeg", noted)
    return taken


@contextmanager
def pillow_only() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "decode_jpeg", lambda *args: None)
        yield


def outcome(data: bytes, options: DecodeOptions) -> Pixels | tuple[str, str]:
    try:
        return decode(data, options)
    except ImageError as error:
        return error.reason, str(error)


def assert_as_pillow(data: bytes, options: DecodeOptions = DecodeOptions()) -> None:  # noqa: B008
    found = outcome(data, options)
    with pillow_only():
        expected = outcome(data, options)
    assert isinstance(found, tuple) == isinstance(expected, tuple), (found, expected)
    if isinstance(found, tuple):
        assert found == expected
    else:
        np.testing.assert_array_equal(found, expected)
        assert found.flags.c_contiguous
        assert found.flags.writeable


def picture(rng: np.random.Generator, mode: str = "RGB") -> Image.Image:
    """A few blocks of color under noise, of a size up to 130 pixels; sometimes a single row or column."""
    height, width = (int(rng.choice([1, rng.integers(1, 20), rng.integers(1, 130)])) for _ in range(2))
    small = Image.fromarray(rng.integers(0, 256, (3, 4, 3), np.uint8)).resize((width, height))
    noise = rng.normal(0, rng.integers(0, 30), (height, width, 3))
    return Image.fromarray((np.asarray(small) + noise).clip(0, 255).astype(np.uint8)).convert(mode)


def saved(rng: np.random.Generator, image: Image.Image, **options: Any) -> bytes:
    stream = io.BytesIO()
    exif = Image.Exif()
    if rng.random() < 0.5:
        exif[274] = int(rng.integers(0, 10))
    image.save(stream, "JPEG", quality=int(rng.integers(5, 101)), exif=exif, **options)
    return stream.getvalue()


VARIANTS: dict[str, Callable[[np.random.Generator], bytes]] = {
    "4:4:4": lambda rng: saved(rng, picture(rng), subsampling=0),
    "4:2:2": lambda rng: saved(rng, picture(rng), subsampling=1),
    "4:2:0": lambda rng: saved(rng, picture(rng), subsampling=2),
    "progressive": lambda rng: saved(rng, picture(rng), progressive=True, subsampling=int(rng.integers(3))),
    "gray": lambda rng: saved(rng, picture(rng, "L"), progressive=bool(rng.integers(2))),
    "restarts": lambda rng: saved(rng, picture(rng), restart_marker_rows=1),
    "RGB inside": lambda rng: saved(rng, picture(rng), keep_rgb=True),
    "optimized": lambda rng: saved(rng, picture(rng), optimize=True, comment=b"words", dpi=(72, 72)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_to_pillow_bit_for_bit(fast: list[bool], rng: np.random.Generator, name: str) -> None:
    for _ in range(25):
        assert_as_pillow(VARIANTS[name](rng))
    assert fast == [True] * 25


@pytest.mark.parametrize("subsampling", ["440", "411", "420"])
def test_samplings_that_pillow_does_not_write(fast: list[bool], rng: np.random.Generator, subsampling: str) -> None:
    for _ in range(10):
        pixels = np.ascontiguousarray(picture(rng))
        assert_as_pillow(simplejpeg.encode_jpeg(pixels, 80, "RGB", subsampling))
    assert fast == [True] * 10


@pytest.mark.parametrize("mode", ["CMYK"])
def test_what_has_four_channels_is_left_to_pillow(fast: list[bool], rng: np.random.Generator, mode: str) -> None:
    for _ in range(5):
        assert_as_pillow(saved(rng, picture(rng, mode)))
    assert fast == [False] * 5


@pytest.mark.parametrize("options", [DecodeOptions(), CUT], ids=["strict", "allow truncated"])
def test_a_cut_file_has_the_same_end_at_every_place(rng: np.random.Generator, options: DecodeOptions) -> None:
    for make in VARIANTS.values():
        data = make(rng)
        for length in (len(data) - 1, len(data) - 2, *rng.integers(1, len(data), 12)):
            assert_as_pillow(data[:length], options)


@pytest.mark.parametrize("options", [DecodeOptions(), CUT], ids=["strict", "allow truncated"])
def test_damaged_bytes_have_the_same_end(rng: np.random.Generator, options: DecodeOptions) -> None:
    for make in VARIANTS.values():
        for _ in range(15):
            data = bytearray(make(rng))
            for place in rng.integers(2, len(data), rng.integers(1, 5)):
                data[place] = rng.integers(256)
            assert_as_pillow(bytes(data), options)


def test_bytes_before_and_after_a_picture(fast: list[bool], rng: np.random.Generator) -> None:
    data = VARIANTS["4:2:0"](rng)
    for tail in (b"\0" * 100, rng.bytes(3000), data):
        assert_as_pillow(data + tail)
    assert fast == [True] * 3


def test_the_pixel_limit_holds_before_anything_is_decoded(fast: list[bool], rng: np.random.Generator) -> None:
    data = saved(rng, Image.new("RGB", (64, 64)))
    with pytest.raises(ImageError, match="the limit is 4,095"):
        decode(data, DecodeOptions(max_pixels=64 * 64 - 1))
    assert fast == []


@pytest.fixture(scope="module")
def photograph() -> Image.Image:
    from skimage import data

    return Image.fromarray(data.astronaut()).resize((402, 300))


@pytest.mark.parametrize(
    ("min_side", "shape"), [(301, (300, 402)), (150, (150, 201)), (76, (150, 201)), (75, (75, 101))]
)
def test_a_reduced_picture_keeps_the_side_that_is_asked_for(
    photograph: Image.Image, min_side: int, shape: tuple[int, int]
) -> None:
    stream = io.BytesIO()
    photograph.save(stream, "JPEG", quality=90)
    pixels, whole_hw = decode_reduced(stream.getvalue(), DecodeOptions(min_side=min_side))
    assert (pixels.shape, whole_hw) == ((*shape, 3), (300, 402))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_reduced_picture_is_upright_and_near_the_whole_one(photograph: Image.Image, orientation: int) -> None:
    stream, exif = io.BytesIO(), Image.Exif()
    exif[274] = orientation
    photograph.save(stream, "JPEG", quality=95, exif=exif)
    pixels, whole_hw = decode_reduced(stream.getvalue(), DecodeOptions(min_side=100))
    whole = decode(stream.getvalue())
    assert whole_hw == whole.shape[:2]
    assert pixels.shape[:2] == tuple(side // 2 for side in whole_hw)
    assert pixels.flags.c_contiguous
    smaller, expected = (resize(picture, (64, 64), "pil_bilinear").astype(int) for picture in (pixels, whole))
    difference = np.abs(smaller - expected)
    assert difference.mean() < 1
    assert difference.max() <= 20


def test_other_formats_and_damaged_files_are_never_reduced(photograph: Image.Image) -> None:
    options = DecodeOptions(min_side=10)
    for name in ("PNG", "BMP"):
        stream = io.BytesIO()
        photograph.save(stream, name)
        pixels, whole_hw = decode_reduced(stream.getvalue(), options)
        assert pixels.shape[:2] == whole_hw == (300, 402)
    stream = io.BytesIO()
    photograph.save(stream, "JPEG")
    with pytest.raises(ImageError, match="ends before") as caught:
        decode_reduced(stream.getvalue()[:-400], options)
    assert caught.value.reason == "truncated"


@pytest.mark.parametrize("resize_mode", ["stretch", "letterbox", "center_crop"])
def test_boxes_of_a_reduced_picture_are_in_pixels_of_the_whole(resize_mode: Any) -> None:
    recipe = Recipe((64, 64), resize_mode, crop_fraction=0.9)
    whole, reduced = (geometry_for(recipe, hw) for hw in ((300, 402), (150, 201)))
    box = np.array([[10.0, 20.0, 50.0, 60.0]])
    found = reduced.of_whole((300, 402))
    assert (found.source_hw, found.input_hw) == (whole.source_hw, whole.input_hw)
    np.testing.assert_allclose(found.boxes_to_source(box), whole.boxes_to_source(box), atol=402 / 64)
    np.testing.assert_allclose(found.boxes_to_source(box) / 2, reduced.boxes_to_source(box), rtol=1e-12)
