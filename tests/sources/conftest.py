"""Archives, tables and videos of random pictures."""

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vtk.errors import ImageError
from vtk.inputs import Plan, expand
from vtk.preprocess.decode import DecodeOptions
from vtk.sources.options import DEFAULT_OPTIONS, InputOptions

Members = Iterable[tuple[str, bytes]]


def png_of(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    height, width = rng.integers(3, 40, 2)
    stream = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="session")
def png() -> Callable[[int], bytes]:
    """The bytes of a small picture of noise, another one for each seed."""
    return png_of


@pytest.fixture
def write_tar() -> Callable[..., Path]:
    def write(path: Path, members: Members, mode: str = "w", form: int = tarfile.PAX_FORMAT) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, mode, format=form) as archive:  # type: ignore[call-overload]
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return path

    return write


@pytest.fixture
def write_zip() -> Callable[..., Path]:
    def write(path: Path, members: Members, method: int = zipfile.ZIP_DEFLATED) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, data in members:
                archive.writestr(zipfile.ZipInfo(name), data, method)
        return path

    return write


@pytest.fixture
def write_video() -> Callable[..., Path]:
    """Frames of 64 x 48 pixels with a white block in the top left corner and their number in black and white below."""
    av = pytest.importorskip("av")

    def write(
        path: Path,
        count: int = 30,
        *,
        codec: str = "libx264",
        times: Sequence[int] | None = None,
        rotation: int = 0,
        **options: str,
    ) -> Path:
        rng = np.random.default_rng(0)
        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=25, options={"g": "10", **options})
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            if times is not None:
                stream.codec_context.time_base = Fraction(1, 1000)
            if rotation:
                stream.set_display_rotation(rotation)
            for number in range(count):
                pixels = np.full((48, 64, 3), 100, np.uint8)
                pixels[:12, :16] = 255
                bits = np.array([number >> bit & 1 for bit in range(8)], np.uint8) * 255
                pixels[32:] = np.repeat(bits, 8)[:, None]
                pixels[12:28] = rng.integers(0, 256, (16, 64, 1))
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                if times is not None:
                    frame.pts, frame.time_base = times[number], Fraction(1, 1000)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path

    return write


class Opened:
    """A plan and the reader of its items."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.reader = plan.open_reader()

    def names(self) -> list[str]:
        return [item.file_name for item in self.plan.items]

    def bytes(self) -> list[bytes | str]:
        """What each item holds, or the reason why it cannot be read."""
        return [self.outcome(index) for index in range(len(self.plan.items))]

    def outcome(self, index: int) -> Any:
        try:
            return self.reader.read(self.plan.items[index]).content
        except ImageError as error:
            return error.reason

    def extras(self) -> list[dict[str, Any]]:
        return [dict(self.reader.read(item).extra) for item in self.plan.items]

    def decoded(self, index: int) -> Any:
        return self.reader.read(self.plan.items[index]).pixels(DecodeOptions())


@pytest.fixture
def opened() -> Iterator[Callable[..., Opened]]:
    """Expands inputs and opens what they name."""
    made: list[Opened] = []

    def open_inputs(*inputs: str | Path, options: InputOptions = DEFAULT_OPTIONS) -> Opened:
        made.append(Opened(expand([str(text) for text in inputs], options=options)))
        return made[-1]

    yield open_inputs
    for one in made:
        one.reader.close()


@pytest.fixture
def memory_store() -> Iterator[Any]:
    """fsspec's store in memory, empty before and after."""
    store = pytest.importorskip("fsspec").filesystem("memory")

    @contextmanager
    def empty() -> Iterator[Any]:
        store.store.clear()
        yield store
        store.store.clear()

    with empty() as made:
        yield made
