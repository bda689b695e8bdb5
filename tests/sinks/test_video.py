"""Video in, annotated video out: every frame at its own time, with its own detections."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import numpy as np
import pytest

from vtk.cli.main import main
from vtk.errors import UsageError
from vtk.inputs import expand
from vtk.merging import merge_jobs, read_shards
from vtk.run import run_job
from vtk.shards import Shard
from vtk.sinks.drawing import class_color
from vtk.sources.options import InputOptions
from vtk.sources.video import VideoSource
from vtk.watching import WatchOptions, watch_job

# Shown at uneven times, in units of 1/90000 s: a clock that counts frames would be wrong.
TIMES = (0, 3003, 6006, 10010, 40040, 41041, 45045, 90090, 93093, 96096, 99099, 103103)


def write_video(path: Path, times: Sequence[int] = TIMES, size_wh: tuple[int, int] = (64, 48)) -> Path:
    """Gray frames that grow lighter."""
    width, height = size_wh
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"crf": "10"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 90_000)
        for index, time in enumerate(times):
            pixels = np.full((height, width, 3), 40 + 12 * index, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 90_000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def read_video(path: Path) -> tuple[list[float], list[Any]]:
    """When each frame is shown, in seconds, and its pixels, read without the code under test."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        return [float(frame.pts * frame.time_base) for frame in frames], [
            frame.to_ndarray(format="rgb24").astype(int) for frame in frames
        ]


def run(stub: ModuleType, source: Path, out: Path, stride: int = 1, **changes: Any) -> Any:
    options = replace(stub.stub_options(("video", "jsonl")), **changes)
    plan = expand([str(source)], options=InputOptions(stride=stride))
    return run_job(stub.StubModel(), plan, out, options, lambda done, failed: None)


@pytest.mark.parametrize("stride", [1, 3])
def test_frames_are_shown_when_they_were(stub: ModuleType, tmp_path: Path, stride: int) -> None:
    source = write_video(tmp_path / "clip.mp4")
    assert run(stub, source, tmp_path / "out", stride).num_results == len(TIMES[::stride])
    times, frames = read_video(tmp_path / "out/video/clip.mp4.mp4")
    expected = [time / 90_000 for time in TIMES[::stride]]
    assert np.abs(np.array(times) - expected).max() <= 1e-6
    for index, pixels in zip(range(0, len(TIMES), stride), frames, strict=True):
        assert pixels.shape == (48, 64, 3)
        assert abs(pixels[4:10, 50:60].mean() - (40 + 12 * index)) < 8, "this frame, not another"
        assert np.abs(pixels[24:44, 31:33].mean((0, 1)) - class_color(1)).max() < 110, "the box's right edge is drawn"


def test_several_videos_among_pictures(stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path]) -> None:
    write_video(tmp_path / "in/a.mp4")
    write_video(tmp_path / "in/b.mkv", TIMES[:5])
    save_picture(tmp_path / "in/c.png")
    plan = expand([str(tmp_path / "in/a.mp4"), str(tmp_path / "in/c.png"), str(tmp_path / "in/b.mkv")])
    options = stub.stub_options(("video",))
    run_job(stub.StubModel(), plan, tmp_path / "out", options, lambda done, failed: None)
    made = sorted(path.name for path in (tmp_path / "out/video").iterdir())
    assert made == ["a.mp4.mp4", "b.mkv.mp4"]
    assert len(read_video(tmp_path / "out/video/b.mkv.mp4")[0]) == 5


def test_equal_frames_are_computed_once_and_all_shown(stub: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "still.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "bgr0"
        for index in range(8):
            pixels = np.full((48, 64, 3), 90 if index % 4 else 30, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    model, plan = stub.StubModel(), expand([str(path)])
    options = replace(stub.stub_options(("video", "annotated", "crops")), dedupe=True)
    run_job(model, plan, tmp_path / "out", options, lambda done, failed: None)
    assert sum(model.calls) == 2
    times, frames = read_video(tmp_path / "out/video/still.mkv.mp4")
    assert np.allclose(times, np.arange(8) / 10, atol=2e-3)
    assert [round(pixels[4:10, 50:60].mean() / 30) for pixels in frames] == [1, 3, 3, 3, 1, 3, 3, 3]
    assert len(list((tmp_path / "out/annotated/still.mkv").iterdir())) == 8
    assert len(list((tmp_path / "out/crops/still.mkv").iterdir())) == 8


def test_odd_sizes_lose_a_pixel_and_nothing_else(stub: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "odd.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 33, 21, "bgr0"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((21, 33, 3), 90, np.uint8), format="rgb24")))
        container.mux(stream.encode())
    run(stub, path, tmp_path / "out")
    times, frames = read_video(tmp_path / "out/video/odd.mkv.mp4")
    assert [pixels.shape for pixels in frames] == [(20, 32, 3)] * 3
    assert np.allclose(times, [0, 0.1, 0.2], atol=2e-3)


def test_a_finished_video_is_left_alone_and_an_unfinished_one_made_again(stub: ModuleType, tmp_path: Path) -> None:
    source, made = write_video(tmp_path / "clip.mp4"), tmp_path / "out/video/clip.mp4.mp4"
    run(stub, source, tmp_path / "out")
    before = (made.read_bytes(), made.stat().st_mtime_ns)
    run(stub, source, tmp_path / "out")
    assert (made.read_bytes(), made.stat().st_mtime_ns) == before
    made.unlink()
    run(stub, source, tmp_path / "out")
    assert read_video(made)[0] == pytest.approx([time / 90_000 for time in TIMES], abs=1e-6)


def test_a_video_stays_in_one_shard(stub: ModuleType, tmp_path: Path) -> None:
    for index in range(6):
        write_video(tmp_path / f"in/{index}.mp4", TIMES[: 3 + index])
    pattern = tmp_path / "in/*.mp4"
    roots = [tmp_path / "a", tmp_path / "b"]
    for number, root in enumerate(roots):
        run(stub, pattern, root, shard=Shard(number + 1, 2))
    names = [{path.name for path in (root / "video").iterdir()} for root in roots]
    assert names[0] & names[1] == set()
    assert len(names[0] | names[1]) == 6
    merge_jobs(read_shards(roots), tmp_path / "merged", lambda done, failed: None)
    for index in range(6):
        assert len(read_video(tmp_path / f"merged/video/{index}.mp4.mp4")[0]) == 3 + index


def test_without_a_video_the_format_is_refused(
    stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path]
) -> None:
    import threading

    save_picture(tmp_path / "in/a.png")
    with pytest.raises(UsageError, match="needs a video among the inputs"):
        run(stub, tmp_path / "in", tmp_path / "out")
    options, watch = stub.stub_options(("video",)), WatchOptions(tmp_path / "in")
    with pytest.raises(UsageError, match="--watch takes pictures"):
        watch_job(stub.StubModel(), watch, tmp_path / "out", options, lambda done, failed: None, threading.Event())
    assert not (tmp_path / "out").exists()


def test_video_on_the_command_line(stub: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case V48: where nothing is found, the video is that of the input."""
    model = stub.StubModel()
    monkeypatch.setattr("vtk.bundle.read_bundle", lambda path: model.bundle)
    monkeypatch.setattr("vtk.predictor.open_predictor", lambda bundle, **options: nullcontext(model))
    source, out = write_video(tmp_path / "clip.mp4"), tmp_path / "out"
    assert main(["run", "b", str(source), "-o", str(out), "--format", "video,annotated,crops", "--score", "1"]) == 0
    times, frames = read_video(out / "video/clip.mp4.mp4")
    for pixels, original in zip(frames, read_video(source)[1], strict=True):
        assert np.abs(pixels - original).mean() < 3
    assert len(list((out / "annotated/clip.mp4").iterdir())) == len(times)
    plan = expand([str(out / "video/clip.mp4.mp4")])
    assert isinstance(plan.sources[0], VideoSource)
    assert len(plan.items) == len(TIMES)
