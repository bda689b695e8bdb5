"""Frames of a camera or a live stream: those that nobody is ready for are dropped and counted."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vtk.errors import ImageError, InputError, UsageError
from vtk.sources.base import Picture, frame
from vtk.sources.remote import HTTP_SCHEMES, SEPARATOR
from vtk.sources.video import import_av

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

STREAM_SCHEMES = ("rtsp", "rtsps", "rtmp", "rtp", "udp", "srt", "tcp")
DEVICE_FOLDER = "/dev/"
DEVICE_FORMAT = "v4l2"
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class CameraOptions:
    """address: a device (/dev/video0) or the URL of a stream (rtsp://…). stride: take every n-th frame.

    max_frames: of the whole job, None for until it is stopped or the stream ends. allow_http: take http(s) URLs.
    """

    address: str
    stride: int = 1
    max_frames: int | None = None
    allow_http: bool = False

    def __post_init__(self) -> None:
        scheme, found, _ = self.address.partition(SEPARATOR)
        if found and scheme.lower() in HTTP_SCHEMES:
            if not self.allow_http:
                raise UsageError(f"{self.address} would be fetched over HTTP.", hint="Allow it with --allow-http.")
        elif found and scheme.lower() not in STREAM_SCHEMES:
            raise UsageError(f"'{scheme}' is no kind of stream.", hint=f"Known: {', '.join(STREAM_SCHEMES)}, http(s).")
        elif not found and not self.address.startswith(DEVICE_FOLDER):
            raise UsageError(f"{self.address} is no camera.", hint="Name a device (/dev/video0) or a URL (rtsp://…).")

    @property
    def shown(self) -> str:
        """The address without a user's name and password."""
        scheme, found, rest = self.address.partition(SEPARATOR)
        return scheme + found + rest.rpartition("@")[2] if found else self.address


@dataclass(frozen=True, eq=False)
class Shot:
    """One frame. number: of all that the camera gave. taken: when it came, in seconds since 1970."""

    number: int
    taken: float
    frame: VideoFrame

    def picture(self) -> Picture:
        """RGB, upright; the row holds `frame` and `taken_s`."""
        pixels = np.rot90(self.frame.to_ndarray(format="rgb24"), round(self.frame.rotation / 90) % 4)
        return frame(np.ascontiguousarray(pixels), {"frame": self.number, "taken_s": round(self.taken, 6)})


class Camera:
    """Reads a stream in a thread of its own and holds the newest `room` frames until they are taken."""

    def __init__(self, frames: Iterator[VideoFrame], *, stride: int, room: int) -> None:
        """`frames` is read to its end or until `close`; an error that it raises is raised by `take`."""
        self.num_dropped = 0
        self._frames = frames
        self._stride = stride
        self._held: deque[Shot] = deque(maxlen=room)
        self._changed = threading.Condition()
        self._ended = self._closed = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="vtk-camera", daemon=True)
        self._thread.start()

    def take(self, most: int, timeout: float) -> list[Shot] | None:
        """The oldest frames held, at most `most`; none after `timeout` seconds without any, None at the end.

        Raises InputError when the stream has broken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._held or self._ended, timeout)
            shots = [self._held.popleft() for _ in range(min(most, len(self._held)))]
            if shots or not self._ended:
                return shots
            if self._error is not None:
                raise InputError(f"The camera has stopped: {self._error}.") from self._error
            return None

    def close(self) -> None:
        self._closed = True
        self._thread.join()

    def _read(self) -> None:
        try:
            for number, frame in enumerate(self._frames):
                if self._closed:
                    break
                if number % self._stride == 0:
                    self._hold(Shot(number, time.time(), frame))
        except Exception as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _hold(self, shot: Shot) -> None:
        with self._changed:
            self.num_dropped += len(self._held) == self._held.maxlen
            self._held.append(shot)
            self._changed.notify_all()


def camera_frames(options: CameraOptions) -> Iterator[VideoFrame]:
    """The decoded frames of a camera; damaged ones are left out, as they are of a moment that is over.

    Raises InputError when it cannot be opened, MissingDependencyError without PyAV.
    """
    av = import_av()
    device = options.address.startswith(DEVICE_FOLDER)
    settings: dict[str, Any] = {"format": DEVICE_FORMAT} if device else {"options": {"rtsp_transport": "tcp"}}
    try:
        container = av.open(options.address, timeout=TIMEOUT_SECONDS, **settings)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise InputError(f"The camera {options.shown} cannot be opened: {error}.") from error
    if not container.streams.video:
        container.close()
        raise InputError(f"{options.shown} has no video stream.")
    return _decoded(container, av.error.InvalidDataError)


def _decoded(container: Any, damaged: type[Exception]) -> Iterator[VideoFrame]:
    with container:
        for packet in container.demux(video=0):
            try:
                yield from packet.decode()
            except damaged:  # noqa: PERF203
                continue


class Shots:
    """A few frames as an open source, so that a reader finds them by position."""

    path = "camera"
    identity = "camera"

    def __init__(self, shots: list[Shot]) -> None:
        self.shots = shots

    def open(self) -> Shots:
        return self

    def read(self, position: int) -> Picture:
        return self.shots[position].picture()

    def close(self) -> None:
        pass


def gone(_: object) -> Picture:
    """For formats that look at pictures again: a camera's are over. Raises ImageError."""
    raise ImageError("unreadable", "A frame of a camera cannot be read again.")
