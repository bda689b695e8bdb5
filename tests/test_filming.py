"""Cameras: frames as they come, in bounded memory, until something ends it."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from vtk.cli.main import main
from vtk.errors import InputError, MissingDependencyError, UsageError
from vtk.filming import film_job
from vtk.sources.camera import Camera, CameraOptions, Shots, camera_frames

av = pytest.importorskip("av")

CAMERA = CameraOptions("/dev/video7")


def frame_of(number: int) -> Any:
    return av.VideoFrame.from_ndarray(np.full((24, 32, 3), 10 + number, np.uint8), format="rgb24")


def film(count: int) -> Iterator[Any]:
    return (frame_of(number) for number in range(count))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def job(stub: ModuleType, tmp_path: Path) -> Callable[..., Any]:
    def run(frames: Iterator[Any], camera: CameraOptions = CAMERA, stop: Any = None, **changes: Any) -> Any:
        options = replace(stub.stub_options(), **changes)
        event = stop or threading.Event()
        return film_job(stub.StubModel(), camera, tmp_path / "out", options, lambda *_: None, event, frames)

    return run


def in_step(count: int, camera_of: Callable[[], Path]) -> Iterator[Any]:
    """A camera that gives the next frame when the last one has its row: nothing is dropped."""
    for number in range(count):
        yield frame_of(number)
        log = camera_of() / "results.jsonl"
        waited = threading.Event()
        while not log.exists() or len(log.read_bytes().splitlines()) < number + 1:
            waited.wait(0.005)


def test_every_frame_that_is_taken_has_its_row(job: Callable[..., Any], tmp_path: Path) -> None:
    summary, dropped = job(in_step(7, lambda: tmp_path / "out"), formats=("jsonl", "annotated"))
    assert (summary.num_results, summary.complete, dropped) == (7, True, 0)
    found = rows(tmp_path / "out/results.jsonl")
    assert [row["frame"] for row in found] == list(range(7))
    assert [row["file_name"] for row in found] == [f"{number:08d}" for number in range(7)]
    assert (np.diff([row["taken_s"] for row in found]) > 0).all()
    assert (np.diff([row["detections"][0]["score"] for row in found]) > 0).all()
    assert sorted(path.name for path in (tmp_path / "out/annotated").iterdir())[6] == "00000006.png"


def test_a_limit_holds_for_the_whole_job(job: Callable[..., Any], tmp_path: Path) -> None:
    """Going on takes new frames: those of then are over."""
    limited = replace(CAMERA, max_frames=5)
    stop = threading.Event()

    def first() -> Iterator[Any]:
        yield from in_step(3, lambda: tmp_path / "out")
        stop.set()

    assert job(first(), limited, stop)[0].num_results == 3
    summary, _ = job(film(100), limited)
    assert (summary.num_results, summary.num_new) == (5, 2)
    assert [row["index"] for row in rows(tmp_path / "out/results.jsonl")] == list(range(5))


def test_a_slow_model_costs_frames_and_no_memory() -> None:
    """Only the newest are held; the stride counts what the camera gives."""
    done = threading.Event()

    def many() -> Iterator[Any]:
        yield from film(100)
        done.set()
        threading.Event().wait(0.01)

    camera = Camera(many(), stride=3, room=4)
    assert done.wait(10)
    shots = camera.take(10, 1)
    assert shots is not None
    assert [shot.number for shot in shots] == [90, 93, 96, 99]
    assert camera.num_dropped == 30
    assert camera.take(10, 10) is None
    camera.close()


def test_nothing_for_a_while_is_no_end() -> None:
    go_on = threading.Event()

    def late() -> Iterator[Any]:
        go_on.wait(10)
        yield frame_of(0)

    camera = Camera(late(), stride=1, room=2)
    assert camera.take(1, 0.01) == []
    go_on.set()
    shots = camera.take(1, 10)
    assert shots is not None
    assert Shots(shots).open().read(0).pixels(None).shape == (24, 32, 3)  # type: ignore[arg-type]
    camera.close()


def test_a_camera_that_breaks_keeps_what_was_taken(job: Callable[..., Any], tmp_path: Path) -> None:
    def broken() -> Iterator[Any]:
        yield from in_step(2, lambda: tmp_path / "out")
        raise OSError("unplugged")

    with pytest.raises(InputError, match="unplugged"):
        job(broken())
    assert len(rows(tmp_path / "out/results.jsonl")) == 2


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://cam/mjpeg", "--allow-http"),
        ("file:///etc/passwd", "no kind of stream"),
        ("concat:a|b", "no camera"),
        ("clip.mp4", "no camera"),
    ],
)
def test_what_is_no_camera_is_refused(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CameraOptions(address)


def test_passwords_are_not_written_down(job: Callable[..., Any], tmp_path: Path) -> None:
    job(film(1), CameraOptions("rtsp://me:secret@host:554/one", max_frames=1))
    assert "secret" not in (tmp_path / "out/job.json").read_text() + (tmp_path / "out/results.jsonl").read_text()
    assert rows(tmp_path / "out/results.jsonl")[0]["path"] == "rtsp://host:554/one"


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        camera_frames(CAMERA)
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(MissingDependencyError, match="video"):
        camera_frames(CAMERA)


def test_the_command_line_films(
    stub: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from contextlib import nullcontext

    model = stub.StubModel()
    monkeypatch.setattr("vtk.bundle.read_bundle", lambda path: model.bundle)
    monkeypatch.setattr("vtk.predictor.open_predictor", lambda bundle, **options: nullcontext(model))
    monkeypatch.setattr("vtk.filming.camera_frames", lambda options: film(500))
    out = ["-o", str(tmp_path / "out")]
    assert main(["run", "b", "--camera", "/dev/video0", "--max-frames", "6", *out]) == 0
    printed = capsys.readouterr()
    assert "Filming /dev/video0; stub on cpu" in printed.err
    assert "6 results" in printed.out
    for bad, message in (
        (["x.jpg", "--camera", "/dev/video0"], "place of INPUT"),
        (["x.jpg", "--max-frames", "3"], "--max-frames is for --camera"),
        (["--camera", "/dev/video0", "--shard", "1/2"], "--shard is not for --camera"),
        (["--camera", "/dev/video0", "--format", "video"], "annotated"),
    ):
        assert main(["run", "b", *bad, "-o", str(tmp_path / "bad")]) == 2
        assert message in capsys.readouterr().err
