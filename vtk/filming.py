"""A camera as a job: its frames go through the model as fast as that can, until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from vtk.arrived import Arrived
from vtk.errors import UsageError
from vtk.items import Item
from vtk.job_request import OpenModel, RunOptions, request_of
from vtk.run import OnProgress, Summary, open_run
from vtk.sources.camera import Camera, CameraOptions, Shot, Shots, camera_frames, gone
from vtk.sources.reader import Reader

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

WAIT_SECONDS = 0.5


def film_job(
    model: OpenModel,
    camera: CameraOptions,
    out: Path,
    options: RunOptions,
    on_progress: OnProgress,
    stop: threading.Event,
    frames: Iterator[VideoFrame] | None = None,
) -> tuple[Summary, int]:
    """Start or go on with the job in `out` until `stop` is set, the stream ends, or the job has `max_frames`.

    Returns the summary and the number of frames for which the model was too slow. frames: None to open the camera.
    Raises InputError for a camera that cannot be opened or breaks, UsageError for formats that read pictures again,
    and as `run_job` does.
    """
    if "video" in options.formats:
        raise UsageError("--format video reads frames again, which a camera cannot give.", hint="Use annotated.")
    request = request_of(model, options, {"camera": camera.shown, "stride": camera.stride})
    with open_run(model, out, options, request, reread=gone, live=True) as run:
        given = camera_frames(camera) if frames is None else frames
        with closing(Camera(given, stride=camera.stride, room=2 * options.batch)) as source:
            complete, left = True, _left(camera, run.job.num_done)
            while complete and left > 0 and not stop.is_set():
                shots = source.take(min(left, options.batch), WAIT_SECONDS)
                if shots is None:
                    break
                if shots:
                    items = Filmed(run.job.num_done, shots, camera.shown)
                    complete = run.carry(items, on_progress, Reader([Shots(shots)]))
                    left = _left(camera, run.job.num_done)
        if complete:
            run.finish()
        return run.summary(complete=complete), source.num_dropped


def _left(camera: CameraOptions, num_done: int) -> int:
    return 1 << 62 if camera.max_frames is None else camera.max_frames - num_done


class Filmed(Arrived):
    """Frames, named by their place in the job."""

    def __init__(self, start: int, shots: Sequence[Shot], path: str) -> None:
        super().__init__(start, len(shots))
        self.path = path

    def item(self, index: int) -> Item:
        name = f"{index:08d}"
        return Item(index, self.path, name, name, 0, index - self.start)
