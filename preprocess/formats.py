"""Which picture format encoded bytes are, told by content alone: a file name is never asked."""

from __future__ import annotations

from PIL import features
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from vtk.errors import ImageError

# Only these parsers are ever reached; Pillow has some forty more, one of which starts Ghostscript.
PARSERS: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WebP": WebPImageFile,
    "TIFF": TiffImageFile,
    "BMP": BmpImageFile,
    "GIF": GifImageFile,
    "AVIF": AvifImageFile,
}

_SIGNATURES = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
)
_OTHER_SIGNATURES = (
    (b"%PDF", "PDF"),
    (b"8BPS", "Photoshop"),
    (b"%!PS", "PostScript"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\0\0\1\0", "icon"),
    (b"<svg", "SVG"),
    (b"\x1f\x8b", "gzip"),
    (b"PK\3\4", "ZIP"),
)
_HINT = f"Convert it to one of {', '.join(PARSERS)}."


def identify(data: bytes) -> str:
    """The key of `PARSERS` for these bytes; raises ImageError (empty, unsupported, not_an_image)."""
    if not data:
        raise ImageError("empty", "The file is empty.")
    name = _match(data)
    if name in PARSERS:
        if name in ("WebP", "AVIF") and not features.check(name.lower()):
            raise ImageError("unsupported", f"This Pillow was built without {name}.", hint="Run: pip install -U pillow")
        return name
    if name is not None:
        raise ImageError("unsupported", f"The content is {name}, which is not decoded here.", hint=_HINT)
    start = data[:64].lstrip().lower()
    page = "an HTML page" if start.startswith((b"<!doctype html", b"<html")) else f"bytes {data[:8]!r}"
    raise ImageError("not_an_image", f"The content is no picture: it starts with {page}.", hint=_HINT)


def ends_early(name: str, data: bytes) -> bool:
    """True if a format that states its own length (WebP, AVIF) states more than there is."""
    if name == "WebP":
        return len(data) < 8 + int.from_bytes(data[4:8], "little")
    position = 0
    while name == "AVIF" and position + 8 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        if size < 8:
            return False
        position += size
    return position > len(data)


def _match(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[4:8] == b"ftyp":
        brands = data[8 : int.from_bytes(data[:4], "big")]
        return "AVIF" if b"avif" in brands or b"avis" in brands else "HEIC or video"
    for signature, name in (*_SIGNATURES, *_OTHER_SIGNATURES):
        if data.startswith(signature):
            return name
    return None
