"""Decoding the frames of one video for several threads that ask for nearly rising frame numbers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import numpy as np

from vtk.errors import ImageError
from vtk.preprocess.resize import RGBImage
from vtk.sources.base import Picture, frame
from vtk.sources.video import VideoSource, import_av, opened

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

# Decoded frames that another thread is about to ask for: as many as there are threads, and no more memory than this.
MAX_KEPT = 16
MAX_KEPT_BYTES = 1 << 28
# Decoding on to the next frames is cheaper than a seek, which starts at a key frame.
NEAR = 16


class OpenVideo:
    """Decodes under a lock and converts to RGB outside it. A damaged frame costs those that build on it, no more."""

    def __init__(self, source: VideoSource) -> None:
        self.source = source
        self._av = import_av()
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, VideoFrame | None] = OrderedDict()
        self._stack = ExitStack()
        self._start()

    def read(self, position: int) -> Picture:
        """Frame number `position * stride`, upright. Raises ImageError for one that is damaged or lost."""
        source = self.source
        if position == source.num_entries and source.rest is not None:
            raise source.rest.error()
        number = position * source.stride
        with self._lock:
            found = self._frame(number)
        if found is None:
            raise ImageError("corrupt", f"Frame {number} of the video cannot be decoded.")
        seconds = source.seconds(number)
        values = {"frame": number, "time_s": None if seconds is None else round(seconds, 6)}
        return frame(_upright(found, source.info.quarter_turns), values)

    def close(self) -> None:
        with self._lock:
            self._kept.clear()
            self._stack.close()

    def _start(self) -> None:
        self._stack.close()
        self._container, self._stream = self._stack.enter_context(opened(self.source.blob))
        self._next = 0
        self._frames = self._decoded()

    def _frame(self, number: int) -> VideoFrame | None:
        """None for a frame that the decoder does not give out."""
        if number in self._kept:
            return self._kept[number]
        self._go_near(number)
        if number in self._kept:
            return self._kept[number]
        for at, decoded in self._frames:
            self._next = at + 1
            if at % self.source.stride == 0:
                self._keep(at, decoded)
            if at == number:
                return decoded
            if at > number:
                break
        return None

    def _keep(self, number: int, decoded: VideoFrame | None) -> None:
        info = self.source.info
        most = max(2, min(MAX_KEPT, MAX_KEPT_BYTES // (2 * info.width * info.height)))
        self._kept[number] = decoded
        while len(self._kept) > most:
            self._kept.popitem(last=False)

    def _go_near(self, number: int) -> None:
        """Seek if the frame lies behind the decoder or far ahead of it."""
        keys = self.source.keys
        key = max(0, int(np.searchsorted(keys, number, side="right")) - 1)
        if self._next <= number and (number - self._next <= NEAR or keys[key] <= self._next):
            return
        # The frames that follow a key frame in the file may be shown before it: one key frame more is always enough.
        start = max(0, key - 1)
        if start == 0 or not self._seek(int(keys[start]), number):
            self._start()

    def _seek(self, key: int, number: int) -> bool:
        """Whether the decoder now stands at or before `number`."""
        times = self.source.times
        assert times is not None  # without times there is one key frame, the first
        try:
            self._container.seek(int(times[key]), stream=self._stream, backward=True)
        except self._av.FFmpegError:
            return False
        self._frames = self._decoded()
        first = next(self._frames, None)
        if first is None or first[0] > number:
            return False
        self._next = first[0] + 1
        self._keep(*first)
        return True

    def _decoded(self) -> Iterator[tuple[int, VideoFrame | None]]:
        """Numbers and frames from where the container stands; None after an error, up to the next key frame."""
        sound, count = True, 0
        for packet in self._packets():
            try:
                frames = self._stream.decode(packet)
            except self._av.FFmpegError:
                sound = False
                continue
            for decoded in frames:
                sound = (sound or bool(decoded.key_frame)) and not decoded.is_corrupt
                number = self._number(decoded, count)
                count += 1
                if number is not None:
                    yield number, decoded if sound else None

    def _packets(self) -> Iterator[Packet[VideoStream] | None]:
        """Packets up to where the file can be read, then None, which makes the decoder give out what it holds."""
        with suppress(self._av.FFmpegError):
            yield from (packet for packet in self._container.demux(self._stream) if packet.size)
        yield None

    def _number(self, decoded: VideoFrame, count: int) -> int | None:
        times = self.source.times
        if times is None:
            return count
        if decoded.pts is None:
            return None
        place = int(np.searchsorted(times, decoded.pts))
        return place if place < len(times) and times[place] == decoded.pts else None


def _upright(decoded: VideoFrame, quarter_turns: int) -> RGBImage:
    pixels = decoded.to_ndarray(format="rgb24")
    return np.ascontiguousarray(np.rot90(pixels, quarter_turns))
