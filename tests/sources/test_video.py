"""Videos: every frame by its number and time, upright, from any thread, whatever is damaged."""

import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vtk.errors import MissingDependencyError
from vtk.inputs import expand
from vtk.sources import video
from vtk.sources.options import InputOptions
from vtk.sources.video import VideoSource
from vtk.sources.video_frames import OpenVideo

pytest.importorskip("av")

Write = Callable[..., Path]
Open = Callable[..., Any]

# Container and codec: B-frames, no B-frames, hidden frames (VP8), no index, no times at all (raw H.264), decode order.
KINDS = [
    ("x.mp4", "libx264", {}),
    ("x.mov", "mpeg4", {}),
    ("x.mkv", "libx264", {}),
    ("x.webm", "libvpx", {"auto-alt-ref": "1", "lag-in-frames": "10"}),
    ("x.avi", "mpeg4", {}),
    ("x.ts", "mpeg2video", {}),
    ("x.mpg", "mpeg1video", {}),
    ("x.h264", "libx264", {}),
]


def number_of(pixels: Any) -> int:
    """Which frame of the written video this is."""
    bits = pixels[36:44].reshape(8, 8, 8, 3)[:, :, 2:6].mean(axis=(0, 2, 3)) > 127
    return int(np.packbits(bits, bitorder="little")[0])


def numbers(found: Any) -> list[int | str]:
    return [outcome if isinstance(outcome, str) else number_of(outcome) for outcome in found.bytes()]


@pytest.mark.parametrize(("name", "codec", "options"), KINDS)
@pytest.mark.parametrize("stride", [1, 7])
def test_every_frame_is_there_under_its_number(
    tmp_path: Path, write_video: Write, opened: Open, name: str, codec: str, options: dict[str, str], stride: int
) -> None:
    path = write_video(tmp_path / name, 30, codec=codec, **options)
    clip = opened(path, options=InputOptions(stride=stride))
    wanted = list(range(0, 30, stride))
    assert clip.names() == [f"{name}/{number:06d}" for number in wanted]
    assert numbers(clip) == wanted
    extras = clip.extras()
    assert [extra["frame"] for extra in extras] == wanted
    times = np.array([extra["time_s"] for extra in extras])
    assert np.diff(times) == pytest.approx(stride / 25, abs=1e-3)


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("name", ["x.mp4", "x.mkv", "x.avi"])
def test_any_thread_asks_for_any_frame(
    tmp_path: Path, write_video: Write, opened: Open, name: str, stride: int
) -> None:
    """Also what going on with a stopped job does: the first frame that is asked for is not the first of the video."""
    path = write_video(tmp_path / name, 40, codec="mpeg4" if name == "x.avi" else "libx264")
    clip = opened(path, options=InputOptions(stride=stride))
    order = list(range(len(clip.plan.items)))
    random.Random(0).shuffle(order)
    with ThreadPoolExecutor(6) as pool:
        assert [number_of(found) for found in pool.map(clip.outcome, order)] == [index * stride for index in order]


def test_going_on_seeks_instead_of_decoding_all(
    tmp_path: Path, write_video: Write, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key frame every 10 frames, frame 55 of 60 needs at most 20 others."""
    clip = opened(write_video(tmp_path / "x.mp4", 60))
    decoded: list[int] = []
    number = OpenVideo._number

    def spy(self: OpenVideo, *args: Any) -> int | None:
        decoded.append(1)
        return number(self, *args)

    monkeypatch.setattr(OpenVideo, "_number", spy)
    assert number_of(clip.outcome(55)) == 55
    assert len(decoded) <= 25


def test_frames_have_the_times_they_are_shown_at(tmp_path: Path, write_video: Write, opened: Open) -> None:
    """A variable frame rate: no time follows from a number."""
    times = [0, 40, 50, 300, 310, 1000, 1500, 1501]
    clip = opened(write_video(tmp_path / "x.mkv", len(times), times=times))
    assert [extra["time_s"] for extra in clip.extras()] == [time / 1000 for time in times]


@pytest.mark.parametrize(("rotation", "corner"), [(0, (0, 0)), (90, (-1, 0)), (-90, (0, -1)), (180, (-1, -1))])
def test_frames_are_upright(
    tmp_path: Path, write_video: Write, opened: Open, rotation: int, corner: tuple[int, int]
) -> None:
    """Case V41 for videos. A phone held upright writes -90: a quarter turn clockwise brings the top left corner to
    the right."""
    clip = opened(write_video(tmp_path / "x.mp4", 3, rotation=rotation))
    pixels = clip.decoded(0)
    assert pixels.shape == ((64, 48, 3) if rotation in (90, -90) else (48, 64, 3))
    corners = {(y, x): int(pixels[y, x].min()) for y in (0, -1) for x in (0, -1)}
    assert max(corners, key=corners.__getitem__) == corner
    info = clip.plan.sources[0].info
    assert (info.height, info.width) == pixels.shape[:2]


def test_what_a_video_says_of_itself(tmp_path: Path, write_video: Write) -> None:
    source = expand([str(write_video(tmp_path / "x.mp4", 12))], options=InputOptions(stride=5)).sources[0]
    assert isinstance(source, VideoSource)
    info = source.info
    assert (info.codec, info.width, info.height, info.num_frames) == ("h264", 64, 48, 12)
    assert info.rate == 25
    assert source.seconds(10) == pytest.approx(0.4)
    assert isinstance(info.time_base, Fraction)


def test_equal_frames_have_equal_digests(tmp_path: Path, write_video: Write, opened: Open) -> None:
    clip = opened(write_video(tmp_path / "x.mp4", 8))
    first, second = (opened(tmp_path / "x.mp4").reader.read(clip.plan.items[3]).sha256 for _ in range(2))
    assert first == second != clip.reader.read(clip.plan.items[4]).sha256


def test_a_cut_video_keeps_the_frames_before(tmp_path: Path, write_video: Write, opened: Open) -> None:
    """The index stands in front and promises 60 frames: those that are gone have one row that says so."""
    path = write_video(tmp_path / "x.mp4", 60)
    moved = tmp_path / "fast.mp4"
    _with_index_in_front(path, moved)
    data = moved.read_bytes()
    moved.write_bytes(data[: len(data) * 6 // 10])
    found = numbers(opened(moved))
    kept = [number for number in found if isinstance(number, int)]
    assert kept == list(range(len(kept)))
    assert 5 < len(kept) < 60
    assert found[-1] == "truncated"
    assert opened(moved).names()[-1].endswith("-cut-off")
    path.write_bytes(path.read_bytes()[:-200])
    assert opened(path).bytes() == ["corrupt"], "an index at the end is lost, and all frames with it"


@pytest.mark.parametrize("suffix", [".mkv", ".webm"])
def test_a_cut_matroska_file_says_that_it_is_cut(tmp_path: Path, write_video: Write, opened: Open, suffix: str) -> None:
    """It does not count its frames, but states its size."""
    path = write_video(tmp_path / f"x{suffix}", 60, codec="libx264" if suffix == ".mkv" else "libvpx")
    assert numbers(opened(path)) == list(range(60))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    found = numbers(opened(path))
    assert found == [*range(len(found) - 1), "truncated"]
    assert 5 < len(found) < 60
    unknown = data.index(b"\x18\x53\x80\x67") + 4
    live = data[:unknown] + b"\x01" + b"\xff" * 7 + data[unknown + 8 :]
    path.write_bytes(live[: len(data) * 6 // 10])
    assert "truncated" not in numbers(opened(path)), "a live recording has no end that could be missed"


def _with_index_in_front(path: Path, out: Path) -> None:
    import av

    options = {"movflags": "faststart"}
    with av.open(str(path)) as source, av.open(str(out), "w", options=options) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)


def test_damage_in_the_middle_costs_the_frames_it_hits(tmp_path: Path, write_video: Write, opened: Open) -> None:
    """Frames before it are there, those from the next key frame on as well, and nothing wrong is given out."""
    path = write_video(tmp_path / "x.mp4", 60)
    import av

    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    place, size = packets[25]
    data[place : place + size] = b"\xff" * size
    path.write_bytes(data)
    found = numbers(opened(path))
    assert len(found) == 60
    assert found[:20] == list(range(20))
    assert found[40:] == list(range(40, 60))
    assert "corrupt" in found
    assert all(outcome == "corrupt" or outcome == number for number, outcome in enumerate(found))


@pytest.mark.parametrize("data", [b"", b"no video", bytes(5000)])
def test_what_is_no_video_is_one_failure(tmp_path: Path, write_video: Write, opened: Open, data: bytes) -> None:
    (tmp_path / "bad.mp4").write_bytes(data)
    found = opened(tmp_path / "bad.mp4", write_video(tmp_path / "good.mp4", 2))
    assert numbers(found) == ["corrupt" if data else "empty", 0, 1]


def test_sound_alone_is_no_video(tmp_path: Path, opened: Open) -> None:
    import av

    path = tmp_path / "x.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    assert opened(path).bytes() == ["unsupported"]


@pytest.mark.parametrize("suffix", [".mp4", ".ts", ".mkv"])
def test_a_playlist_in_disguise_opens_nothing(tmp_path: Path, write_video: Write, opened: Open, suffix: str) -> None:
    """FFmpeg tells formats by content; a playlist would read other files or fetch URLs."""
    write_video(tmp_path / "secret.ts", 3, codec="mpeg2video")
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path / 'secret.ts'}\n#EXT-X-ENDLIST\n"
    concat = f"ffconcat version 1.0\nfile '{tmp_path / 'secret.ts'}'\n"
    for number, text in enumerate((playlist, concat)):
        (tmp_path / f"{number}{suffix}").write_text(text)
        assert opened(tmp_path / f"{number}{suffix}").bytes() == ["corrupt"]


def test_frames_beyond_the_pixel_limit(
    tmp_path: Path, write_video: Write, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "DEFAULT_MAX_PIXELS", 3000)
    assert opened(write_video(tmp_path / "x.mp4", 2)).bytes() == ["too_large"]


def test_the_stride_is_part_of_the_job(tmp_path: Path, write_video: Write) -> None:
    path = str(write_video(tmp_path / "x.mp4", 2))
    assert (
        expand([path], options=InputOptions(stride=2)).digest != expand([path], options=InputOptions(stride=3)).digest
    )


def test_a_video_can_be_sent_and_opened_elsewhere(tmp_path: Path, write_video: Write) -> None:
    plan = pickle.loads(pickle.dumps(expand([str(write_video(tmp_path / "x.mp4", 5))])))
    with plan.open_reader() as reader:
        assert number_of(reader.read(plan.items[4]).content) == 4


def test_the_package_is_named_when_it_is_missing(
    tmp_path: Path, write_video: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / "x.mp4", 2)
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(MissingDependencyError, match="video"):
        expand([str(path)])


def test_unicode_and_odd_names(tmp_path: Path, write_video: Write, opened: Open) -> None:
    """Case V45; FFmpeg would take a colon for a protocol."""
    for name in ("你好.mp4", "a b#.mp4", "http:x.mp4"):
        path = write_video(tmp_path / "x.mp4", 2).rename(tmp_path / name)
        assert numbers(opened(path)) == [0, 1]
