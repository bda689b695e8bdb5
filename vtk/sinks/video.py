"""Videos with their detections drawn on the frames, each frame shown when it was."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from vtk.errors import MissingDependencyError
from vtk.preprocess.decode import DecodeOptions
from vtk.sinks.base import OutputFolder, Reread, Row, Rows, Sink
from vtk.sinks.drawing import draw_detections

FOLDER = "video"
SUFFIX = ".mp4"
CODEC = "libx264"
QUALITY = "20"
TICKS = 1_000_000
FALLBACK_RATE = 25


class VideoSink(Sink):
    """`video/NAME.mp4` (H.264) per video NAME of the job, made at the end from its rows; frames are decoded once more.

    Frames appear at their own times, to the microsecond; with a stride the others are left out, and frames that failed
    as well. A video that does not say when its frames are shown gets 25 per second. An odd width or height is cut by
    one pixel, which H.264 asks for. Raises MissingDependencyError without PyAV.
    """

    def __init__(self, out: OutputFolder, decode: DecodeOptions, reread: Reread) -> None:
        try:
            import av
        except ImportError:
            raise MissingDependencyError("av", needed_for="--format video", extra="video") from None
        self.av: Any = av
        self.out = out
        self.decode = decode
        self.reread = reread

    def finish(self, count: int, rows: Rows) -> None:
        frames = (row for row in rows() if "frame" in row)
        for video, group in groupby(frames, lambda row: PurePosixPath(row["output"]).parent):
            name = f"{FOLDER}/{video}{SUFFIX}"
            if not (self.out.root / name).exists():
                with self.out.replace(name, durable=True) as stream:
                    self._encode(stream, group)

    def _encode(self, stream: BinaryIO, rows: Iterator[Row]) -> None:
        target: Any = None
        with self.av.open(stream, mode="w", format="mp4") as container:
            for row in rows:
                pixels = self._drawn(row)
                if target is None:
                    target = self._add_stream(container, pixels.shape)
                frame = self.av.VideoFrame.from_ndarray(pixels[: target.height, : target.width], format="rgb24")
                frame.pts, frame.time_base = ticks(row), Fraction(1, TICKS)
                container.mux(target.encode(frame))
            container.mux(target.encode())

    def _add_stream(self, container: Any, shape: tuple[int, ...]) -> Any:
        stream = container.add_stream(CODEC, options={"crf": QUALITY, "preset": "veryfast"})
        stream.height, stream.width = (side - side % 2 for side in shape[:2])
        stream.pix_fmt = "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, TICKS)
        return stream

    def _drawn(self, row: Row) -> Any:
        picture = Image.fromarray(self.reread(row).pixels(self.decode))
        draw_detections(picture, row["detections"])
        return np.asarray(picture)


def ticks(row: Row) -> int:
    """When the frame of a row is shown, in microseconds."""
    seconds: float = row["frame"] / FALLBACK_RATE if row["time_s"] is None else row["time_s"]
    return round(seconds * TICKS)
