"""Frames of video files: which there are and when each is shown, told from the packets without decoding any.

A frame is known by its presentation time, so one that the decoder loses is missed by itself and those after it keep
their numbers. Files whose packets carry no times (raw H.264) are numbered as they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vtk.errors import ImageError, MissingDependencyError
from vtk.postprocess.results import IntArray
from vtk.preprocess.decode import DEFAULT_MAX_PIXELS
from vtk.sources.base import Damage, Entry, Listing, OpenSource, broken
from vtk.sources.blob import Blob
from vtk.sources.matroska import is_cut

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

VIDEO_SUFFIXES = (
    *(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".m2ts", ".mts", ".3gp", ".ogv"),
    *(".flv", ".wmv", ".asf", ".h264", ".h265", ".hevc", ".ivf"),
)
# Formats that hold their own data: playlists (HLS, DASH, concat) would make the file open others, or URLs.
OPTIONS = {
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,ogg,flv,asf,h264,hevc,ivf",
    "protocol_whitelist": "file",
}
MATROSKA = "matroska"
# Demuxers that go exactly where they are asked to; in others, decoding starts at the first frame.
EXACT_SEEK = ("mov", MATROSKA)
VP8_SHOWN = 0x10  # show_frame of the frame tag, RFC 6386 section 9.1

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class VideoInfo:
    """width, height: of the upright frames, in pixels. rate: frames per second on average, None if the file has none.

    time_base: seconds per unit of presentation time. quarter_turns: counterclockwise, from the stored to the upright
    frame. num_frames: in the file, whatever the stride.
    """

    codec: str
    width: int
    height: int
    rate: Fraction | None
    time_base: Fraction
    quarter_turns: int
    num_frames: int


@dataclass(frozen=True, eq=False)
class VideoSource:
    """A listed video. times: (F,) presentation times, rising, or None where packets have none. keys: (K,) frame numbers
    at which decoding can start. rest: what stands for the frames that the file lost at its end.
    """

    blob: Blob
    info: VideoInfo
    stride: int
    times: IntArray | None
    keys: IntArray
    rest: Damage | None = None

    @property
    def path(self) -> str:
        return self.blob.path

    @property
    def identity(self) -> str:
        return f"video stride {self.stride}"

    @property
    def num_entries(self) -> int:
        """Frames that are taken, without the entry for the rest."""
        return -(-self.info.num_frames // self.stride)

    def seconds(self, number: int) -> float | None:
        """When frame `number` is shown, as the file has it; None where neither times nor a rate are known."""
        if self.times is not None:
            return float(int(self.times[number]) * self.info.time_base)
        return None if self.info.rate is None else float(number / self.info.rate)

    def open(self) -> OpenSource:
        from vtk.sources.video_frames import OpenVideo

        return OpenVideo(self)


def list_video(blob: Blob, stride: int) -> Listing:
    """Every `stride`-th frame of the file's best video stream, named by its number."""
    try:
        with opened(blob) as (container, stream):
            first = _first_frame(container, stream)
        with opened(blob) as (container, stream):
            return _listing(blob, stride, first, container, stream)
    except ImageError as error:
        return broken(blob.path, error.reason, error.message)
    except OSError as error:
        return broken(blob.path, "unreadable", f"The video cannot be read: {error.strerror or error}.")


@contextmanager
def opened(blob: Blob) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The container and its best video stream. Raises ImageError (empty, corrupt, unsupported) without one.

    Raises MissingDependencyError without PyAV.
    """
    av = import_av()
    with blob.open() as file:
        if not file.read(1):
            raise ImageError("empty", "The file is empty.")
        file.seek(0)
        try:
            container = av.open(file, options=OPTIONS, metadata_errors="replace")
        except av.FFmpegError as error:
            raise ImageError("corrupt", f"The file is no video that can be opened: {error.strerror}.") from error
        with container:
            if not container.streams.video:
                raise ImageError("unsupported", "The file has no video stream.")
            stream = container.streams.best("video")
            if stream.codec_context is None:
                raise ImageError("unsupported", "There is no decoder for the video stream.")
            stream.thread_type = "AUTO"
            yield container, stream


def import_av() -> Any:
    """PyAV. Raises MissingDependencyError."""
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError("av", needed_for="Reading a video", extra="video") from error
    return av


def _listing(blob: Blob, stride: int, first: VideoFrame, container: InputContainer, stream: VideoStream) -> Listing:
    times, is_key = _packets(container, stream)
    if not len(is_key):
        raise ImageError("empty", "The video has no frames.")
    if not container.format.name.startswith(EXACT_SEEK):
        is_key[1:] = False
    turns = round(first.rotation / 90) % 4
    width, height = (first.height, first.width) if turns % 2 else (first.width, first.height)
    if width * height > DEFAULT_MAX_PIXELS:
        raise ImageError("too_large", f"Frames of {width} x {height} pixels; the limit is {DEFAULT_MAX_PIXELS:,}.")
    count, stated = len(is_key), stream.frames
    base = stream.time_base or Fraction(1)
    info = VideoInfo(stream.codec_context.name, width, height, stream.average_rate, base, turns, count)
    rest = Damage("truncated", f"The file ends after frame {count} of {stated}.") if stated > count else None
    if rest is None and container.format.name.startswith(MATROSKA):
        with blob.open() as file:
            rest = Damage("truncated", f"The file ends early, after frame {count}.") if is_cut(file) else None
    source = VideoSource(blob, info, stride, times, np.flatnonzero(is_key), rest)
    return Listing(source, _entries(source))


def _entries(source: VideoSource) -> list[Entry]:
    names = [f"{number:06d}" for number in range(0, source.info.num_frames, source.stride)]
    if source.rest is not None:
        names.append(f"{source.info.num_frames:06d}-cut-off")
    return [Entry(name, name) for name in names]


def _packets(container: InputContainer, stream: VideoStream) -> tuple[IntArray | None, BoolArray]:
    """Rising presentation times of the frames to be shown, None if there are none, and at which decoding can start."""
    shown = [(packet.pts, packet.is_keyframe) for packet in _demuxed(container, stream) if _is_shown(packet)]
    times = np.array([pts for pts, _ in shown if pts is not None], np.int64)
    if len(times) < len(shown):
        return None, np.arange(len(shown)) == 0
    times, firsts = np.unique(times, return_index=True)
    return times, np.array([is_key for _, is_key in shown], np.bool_)[firsts]


def _demuxed(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """The packets up to the end of the file or to where it cannot be read on."""
    av = import_av()
    with suppress(av.FFmpegError):
        yield from container.demux(stream)


def _is_shown(packet: Packet[VideoStream]) -> bool:
    """False for what an edit list cuts off, for the mark of the end, and for VP8's frames that are only referred to."""
    if packet.is_discard or not packet.size:
        return False
    return packet.stream.codec_context.name != "vp8" or bool(memoryview(packet)[0] & VP8_SHOWN)


def _first_frame(container: InputContainer, stream: VideoStream) -> VideoFrame:
    """The first frame that can be decoded: it tells the size, and how the video is to be turned."""
    av = import_av()
    for packet in _demuxed(container, stream):
        with suppress(av.FFmpegError):
            for frame in stream.decode(packet):
                return frame
    raise ImageError("corrupt", "No frame of the video can be decoded.")
