import io
import os
import re
import resource
import struct
import threading
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from vtk.errors import ImageError, UsageError
from vtk.preprocess.decode import DEFAULT_MAX_PIXELS, DecodeOptions, decode, upright_rgb
from vtk.preprocess.formats import PARSERS

Encode = Callable[..., bytes]
CUT = DecodeOptions(allow_truncated=True)


def _reason(source: bytes | Path, options: DecodeOptions = DecodeOptions()) -> str:  # noqa: B008
    with pytest.raises(ImageError) as caught:
        decode(source, options)
    return caught.value.reason


def _outcome(source: bytes, options: DecodeOptions) -> str:
    """ "picture", or the reason why there is none; anything else is raised."""
    try:
        picture = decode(source, options)
    except ImageError as error:
        return error.reason
    assert (picture.dtype, picture.ndim, picture.shape[2]) == (np.uint8, 3, 3)
    return "picture"


@pytest.fixture(params=PARSERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_format_keeps_the_picture(encode: Encode, photo: Image.Image, name: str) -> None:
    picture = decode(encode(photo, name))
    difference = np.abs(picture.astype(int) - np.asarray(photo))
    assert difference.mean() <= {"GIF": 6, "JPEG": 4, "WebP": 4, "AVIF": 4}.get(name, 0)
    assert picture.flags.c_contiguous


def test_only_the_first_frame_is_decoded(encode: Encode, photo: Image.Image) -> None:
    second = Image.new("RGB", photo.size, "red")
    for name in ("GIF", "TIFF", "PNG", "WebP"):
        options = {"lossless": True} if name == "WebP" else {}
        animated = encode(photo, name, save_all=True, append_images=[second], **options)
        np.testing.assert_array_equal(decode(animated), decode(encode(photo, name, **options)))


def test_content_decides_not_the_name(encode: Encode, photo: Image.Image, tmp_path: Path) -> None:
    path = tmp_path / "really_a_png.jpg"
    path.write_bytes(encode(photo, "PNG"))
    np.testing.assert_array_equal(decode(path), np.asarray(photo))


@pytest.mark.parametrize(
    "file_name",
    [
        "你好.jpg",
        "é è.png",
        "a b#.jpg",
        "-leading dash.png",
        "%d %s {}.png",
        "☃" * 80 + ".png",
        "no_suffix",
        "x\ny.png",
    ],
)
def test_case_v45_any_file_name_works(encode: Encode, photo: Image.Image, tmp_path: Path, file_name: str) -> None:
    path = tmp_path / file_name
    path.write_bytes(encode(photo, "PNG"))
    np.testing.assert_array_equal(decode(path), np.asarray(photo))


def test_case_v45_long_paths_work(encode: Encode, photo: Image.Image, tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200) / ("e" * 200)
    folder.mkdir(parents=True)
    path = folder / ("f" * 200 + ".png")
    path.write_bytes(encode(photo, "PNG"))
    assert decode(path).shape == (40, 60, 3)


def test_case_v45_no_source_hands_a_path_to_opencv() -> None:
    root = Path(__file__).parents[2]
    folders = ("vtk", "exporters", "preprocess", "postprocess", "kernels", "llm_serving")
    sources = [path for folder in folders for path in (root / folder).rglob("*.py")]
    assert len(sources) > 20
    banned = re.compile(r"\bim(read|write)(multi|animation)?\(|cv2\.VideoCapture\(")
    assert [str(path) for path in sources if banned.search(path.read_text(encoding="utf-8"))] == []


def test_a_pillow_picture_follows_the_same_rule_and_is_left_alone(encode: Encode) -> None:
    indexed = Image.new("P", (3, 2), 1)
    indexed.putpalette([0, 0, 0, 9, 9, 9])
    exif = Image.Exif()
    exif[274] = 6
    stored = encode(indexed, "PNG", transparency=b"\x80\xff", exif=exif)
    with Image.open(io.BytesIO(stored)) as opened:
        np.testing.assert_array_equal(upright_rgb(opened), decode(stored))
        white = DecodeOptions(alpha=(255, 255, 255))
        np.testing.assert_array_equal(upright_rgb(opened, white), decode(stored, white))
        assert opened.info["transparency"] == b"\x80\xff"
        assert opened.size == (3, 2)


# Inputs that are no usable picture -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"", "empty", "empty"),
        (b"<!DOCTYPE html><html>404</html>", "not_an_image", "HTML"),
        (b"\n  <HTML>", "not_an_image", "HTML"),
        (b"hello", "not_an_image", "hello"),
        (bytes(1000), "not_an_image", "no picture"),
        (b"%PDF-1.7", "unsupported", "PDF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "unsupported", "PostScript"),
        (b"8BPS\0\1", "unsupported", "Photoshop"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unsupported", "HEIC"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "unsupported", "JPEG 2000"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "unsupported", "JPEG XL"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "unsupported", "SVG"),
        (b"GIF89a", "truncated", "ends before"),
        (b"\xff\xd8\xff", "truncated", "ends before"),
        (b"\x89PNG\r\n\x1a\n", "truncated", "ends before"),
        (b"BM", "truncated", "ends before"),
        (b"RIFF\x40\0\0\0WEBPVP8 ", "truncated", "ends before"),
    ],
)
def test_foreign_content_is_named(data: bytes, reason: str, words: str) -> None:
    with pytest.raises(ImageError, match=words) as caught:
        decode(data)
    assert caught.value.reason == reason
    assert caught.value.exit_code == 2


def test_paths_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (
        tmp_path,
        tmp_path / "missing.jpg",
        tmp_path / ("n" * 300),
        tmp_path / "nul\0.jpg",
        tmp_path / "pipe.jpg",
    ):
        with pytest.raises(ImageError) as caught:
            decode(path)
        assert caught.value.reason == "unreadable"
        assert str(path) in str(caught.value)


def test_a_file_without_permission_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.jpg"
    path.write_bytes(b"x")
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read everything

        def refuse(self: Path) -> bytes:
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ImageError, match="Permission denied") as caught:
        decode(path)
    assert caught.value.reason == "unreadable"


def test_a_file_beyond_all_bounds_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.png"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    assert _reason(path) == "too_large"


# The pixel limit -----------------------------------------------------------------------------------------------------


def _png_of(width: int, height: int) -> bytes:
    """A one-bit PNG of zeros, made without ever holding its pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 14_000])
def test_case_v59_bombs_are_refused_from_the_header(side: int) -> None:
    bomb = _png_of(side, side)
    assert len(bomb) < 40_000
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=f"{side} x {side}") as caught:
            decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.reason == "too_large"
    assert "--max-pixels" in str(caught.value)


def test_the_limit_is_exact_and_holds_for_every_format(encode: Encode, photo: Image.Image, name: str) -> None:
    stored = encode(photo, name)
    assert decode(stored, DecodeOptions(max_pixels=2400)).shape == (40, 60, 3)
    assert _reason(stored, DecodeOptions(max_pixels=2399)) == "too_large"


def test_the_limit_can_be_raised_and_is_never_zero() -> None:
    wide = _png_of(DEFAULT_MAX_PIXELS // 8 + 1, 8)
    assert _reason(wide) == "too_large"
    assert Image.MAX_IMAGE_PIXELS == 89_478_485
    with pytest.raises(UsageError, match="at least 1"):
        DecodeOptions(max_pixels=0)


@pytest.mark.parametrize("size", [(65_535, 65_535), (12_000, 8_000)])
def test_a_gif_that_claims_too_much_is_refused_without_a_warning(
    encode: Encode, photo: Image.Image, size: tuple[int, int]
) -> None:
    stored = bytearray(encode(photo, "GIF"))
    stored[6:10] = struct.pack("<HH", *size)
    assert _reason(bytes(stored)) == "too_large"


# Cut files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_cut_files_are_refused(encode: Encode, photo: Image.Image, name: str, share: float) -> None:
    stored = encode(photo.resize((300, 200)), name)
    assert _reason(stored[: int(len(stored) * share)]) == "truncated"


def test_cut_files_are_refused_even_if_a_library_changed_pillow(
    encode: Encode, photo: Image.Image, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    stored = encode(photo.resize((300, 200)), name)
    assert _reason(stored[: len(stored) // 2]) in ("truncated", "corrupt")
    assert decode(stored).shape == (200, 300, 3)


@pytest.mark.parametrize("cut_name", ["JPEG", "PNG", "BMP", "GIF", "TIFF"])
def test_case_v54_half_a_file_gives_its_half_if_allowed(encode: Encode, cut_name: str) -> None:
    """White above, noise below: `Image.verify` would pass such a file, only decoding tells."""
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    noise[:40] = 255
    upside = noise[::-1] if cut_name == "BMP" else noise  # BMP stores the last row first
    stored = encode(Image.fromarray(upside), cut_name, **({"interlace": False} if cut_name == "GIF" else {}))
    half = decode(stored[: len(stored) // 2], CUT)
    assert half.shape == (200, 300, 3)
    top = half[::-1] if cut_name == "BMP" else half
    assert (top[:20] == 255).all()
    assert (top[190:] == top[190, 0]).all()
    np.testing.assert_array_equal(decode(stored, CUT), decode(stored))


def test_a_cut_progressive_jpeg_gives_the_whole_picture_coarsely(encode: Encode, photo: Image.Image) -> None:
    big = photo.resize((300, 200))
    stored = encode(big, "JPEG", progressive=True, quality=95)
    coarse = decode(stored[: len(stored) * 2 // 3], CUT)
    assert np.abs(coarse.astype(int) - np.asarray(big)).mean() < 20


def test_damage_is_not_taken_for_a_cut_even_if_cuts_are_allowed(encode: Encode, photo: Image.Image) -> None:
    stored = bytearray(encode(photo, "PNG"))
    position = stored.index(b"IDAT") + 4
    stored[position : position + 8] = b"\xff" * 8
    assert _reason(bytes(stored)) == "corrupt"
    assert _reason(bytes(stored), CUT) == "corrupt"


def test_threads_with_different_options_do_not_disturb_each_other(encode: Encode, photo: Image.Image) -> None:
    stored = encode(photo.resize((300, 200)), "JPEG")
    cut = stored[: len(stored) // 2]
    barrier = threading.Barrier(4)

    def work(index: int) -> list[str]:
        barrier.wait()
        options = CUT if index % 2 else DecodeOptions()
        return [_outcome(cut, options) for _ in range(50)]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    assert [set(outcomes) for outcomes in results] == [{"truncated"}, {"picture"}] * 2
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


# Damaged files -------------------------------------------------------------------------------------------------------


def test_flipped_bytes_give_a_picture_or_an_image_error(
    encode: Encode, photo: Image.Image, name: str, rng: np.random.Generator, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing else is raised, nothing is printed, not by the C libraries either, and memory stays bounded."""
    exif = Image.Exif()
    exif[274] = 6
    options = DecodeOptions(max_pixels=1_000_000)
    originals = [encode(picture, name, **extra) for picture, extra in _variants(photo, name, exif)]
    outcomes = set()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(300):
        damaged = bytearray(originals[rng.integers(len(originals))])
        for position in rng.integers(0, min(len(damaged), int(rng.choice([40, 400, 10**9]))), int(rng.integers(1, 6))):
            damaged[position] = rng.integers(256)
        if rng.random() < 0.2:
            del damaged[int(rng.integers(len(damaged))) :]
        outcomes.add(_outcome(bytes(damaged), options))
    assert outcomes <= {"picture", "empty", "not_an_image", "unsupported", "truncated", "corrupt", "too_large"}
    assert {"picture", "not_an_image"} < outcomes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 200_000
    if name != "TIFF":  # libtiff writes its errors to the file descriptor; nothing but redirecting that would stop it
        assert capfd.readouterr().err == ""


def _variants(photo: Image.Image, name: str, exif: Image.Exif) -> list[tuple[Image.Image, dict[str, object]]]:
    extra = {"exif": exif} if name in ("JPEG", "PNG", "WebP", "TIFF", "AVIF") else {}
    variants: list[tuple[Image.Image, dict[str, object]]] = [(photo, extra), (photo.convert("L"), extra)]
    if name in ("PNG", "GIF", "TIFF"):
        variants += [(photo.convert("P"), extra), (photo, {**extra, "save_all": True, "append_images": [photo]})]
    if name == "TIFF":
        variants += [(photo, {"compression": kind}) for kind in ("tiff_lzw", "tiff_deflate", "jpeg")]
    return variants


@pytest.mark.parametrize("tag", range(254, 285))
def test_odd_metadata_leaks_no_warning(encode: Encode, photo: Image.Image, tag: int) -> None:
    """One broken TIFF entry: whatever comes of the picture, Python's warnings stay quiet, whoever reset the filters."""
    stored = encode(photo, "TIFF")
    start = struct.unpack("<I", stored[4:8])[0] + 2
    count = struct.unpack("<H", stored[start - 2 : start])[0]
    entries = [stored[start + 12 * i : start + 12 * i + 12] for i in range(count)]
    bad = struct.pack("<HHII", tag, 2, 9999, 2**31)
    table = b"".join(bad if entry[:2] == bad[:2] else entry for entry in entries)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _outcome(stored[:start] + table + stored[start + 12 * count :], DecodeOptions())
    assert caught == []
