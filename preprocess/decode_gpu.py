"""The usual JPEG files on an NVIDIA GPU, by nvImageCodec and its nvJPEG; every other file stays with the CPU.

Not yet run on a GPU. The pixels are not those of libjpeg-turbo: inverse DCT and chroma upsampling are nvJPEG's own, so
results differ slightly. Pixels return to host memory, one picture at a time; handing them to the preprocessing kernel
there comes later. Of a file whose markers are whole and whose compressed data is damaged, nvJPEG may return pixels
where the CPU decoder finds the damage.

Source: docstrings of nvImageCodec 0.9.0, of which `tests/data/nvimgcodec` holds the signatures.
"""

from __future__ import annotations

import importlib
import io
import re
import threading
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.ImageFile import ImageFile

from vtk.errors import BackendError, MissingDependencyError

PACKAGE = "nvidia-nvimgcodec-cu12"
_BACKENDS = ("HW_GPU_ONLY", "GPU_ONLY", "HYBRID_CPU_GPU")
_PROBE_WH = (32, 16)
_SOI, _EOI = 0xD8, 0xD9
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive, all of Huffman codes
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ARITHMETIC = 0xCC
_NEXT_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")  # not a stuffed zero, not a restart


class GpuJpegDecoder:
    """Decodes one picture at a time; may be called from several threads.

    counts: pictures `decoded`, and pictures `refused`, which looked usual and the GPU decoder gave nothing for.
    """

    def __init__(self, library: Any) -> None:
        """library: the module `nvidia.nvimgcodec`. Raises BackendError if a JPEG cannot be decoded by it."""
        self.counts: Counter[str] = Counter()
        self._library = library
        self._lock = threading.Lock()
        try:
            backends = [library.Backend(getattr(library.BackendKind, name)) for name in _BACKENDS]
            self._decoder = library.Decoder(device_id=0, backends=backends, options=":fancy_upsampling=1")
            self._params = library.DecodeParams(apply_exif_orientation=False, color_spec=library.ColorSpec.SRGB)
            probed = self._decode(_probe())
        except Exception as error:
            raise BackendError(f"nvImageCodec finds no NVIDIA GPU that it can use: {error}.", hint=_HINT) from error
        if probed is None or probed.shape != (_PROBE_WH[1], _PROBE_WH[0], 3):
            raise BackendError("nvImageCodec finds no decoder of JPEG for this GPU.", hint=_HINT)

    def decode(self, data: bytes, image: ImageFile) -> npt.NDArray[np.uint8] | None:
        """RGB (h, w, 3) as stored, of a JPEG whose header Pillow has parsed as `image`; None leaves it to the CPU.

        That is for everything but whole 8-bit baseline and progressive files of gray or YCbCr, and for any error.
        """
        if image.mode not in ("RGB", "L") or image.info.get("adobe_transform") == 0 or not is_usual(data):
            return None
        with self._lock:
            try:
                pixels = self._decode(data)
            except Exception:
                pixels = None
            usable = pixels is not None and pixels.shape == (image.height, image.width, 3)
            self.counts["decoded" if usable else "refused"] += 1
        return pixels if usable else None

    def _decode(self, data: bytes) -> npt.NDArray[np.uint8] | None:
        decoded = self._decoder.decode(self._library.CodeStream(data), params=self._params)
        on_host = None if decoded is None else decoded.cpu()
        if on_host is None:
            return None
        pixels: npt.NDArray[np.uint8] = np.array(on_host, order="C")
        return pixels if pixels.dtype == np.uint8 else None


_HINT = f"Run: pip install '{PACKAGE}[nvjpeg]', or use --decode cpu."


@cache
def gpu_decoder() -> GpuJpegDecoder:
    """That of this process, on GPU 0. Raises MissingDependencyError without the library, BackendError without GPU."""
    try:
        library = importlib.import_module("nvidia.nvimgcodec")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(PACKAGE, needed_for="--decode gpu", extra="gpu-decode") from error
    except (ImportError, OSError) as error:
        raise BackendError(f"{PACKAGE} cannot be loaded: {error}.", hint=_HINT) from error
    return GpuJpegDecoder(library)


def is_usual(data: bytes) -> bool:
    """True for a JPEG of Huffman codes with 8 bits and 1 or 3 components, not named RGB, that ends with its marker."""
    position, frame = 2, b""
    while (found := _NEXT_MARKER.search(data, position)) is not None:
        marker, position = data[found.end() - 1], found.end()
        if marker == _EOI:
            return bool(frame) and frame[0] == 8 and _components(frame) in (1, 3) and frame[6::3][:3] != b"RGB"
        size = int.from_bytes(data[position : position + 2], "big")
        if marker in _OTHER_FRAMES or marker in (_ARITHMETIC, _SOI) or size < 2:
            return False
        if marker in _FRAMES:
            frame = data[position + 2 : position + size]
        position += size
    return False


def _components(frame: bytes) -> int:
    return frame[5] if len(frame) > 5 and len(frame) == 6 + 3 * frame[5] else 0


def _probe() -> bytes:
    """A picture that every decoder of JPEG takes."""
    stream = io.BytesIO()
    Image.new("RGB", _PROBE_WH, (40, 90, 160)).save(stream, "JPEG")
    return stream.getvalue()
