"""A folder that pictures keep coming into, as a job: each is taken once, when it has stopped growing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vtk.arrived import Arrived
from vtk.errors import InputError, UsageError
from vtk.items import Item
from vtk.job_request import OpenModel, RunOptions, request_of
from vtk.naming import full_output_name, utf8
from vtk.run import OnProgress, Summary, open_run
from vtk.sources.names import PICTURE_SUFFIXES, suffix_of
from vtk.sources.reader import Reader
from vtk.walk import Walker, joined


@dataclass(frozen=True)
class WatchOptions:
    """folder: walked at every look. poll: seconds between two looks. settle: a file whose size and time have been the
    same for that many seconds is whole. idle_timeout: end when nothing has come or grown for that many seconds.
    """

    folder: Path
    poll: float = 0.5
    settle: float = 2.0
    idle_timeout: float | None = None


def watch_job(
    model: OpenModel,
    watch: WatchOptions,
    out: Path,
    options: RunOptions,
    on_progress: OnProgress,
    stop: threading.Event,
) -> Summary:
    """Start or go on with the job in `out` until `stop` is set or nothing comes any more, then make its last files.

    A picture is known by its name: one that is written again under the same name is not taken again. Raises InputError
    for a folder that does not exist, and as `run_job` does.
    """
    if not watch.folder.is_dir():
        raise InputError(f"{watch.folder} is not a folder that can be watched.")
    if watch.folder.resolve() == out.resolve():
        raise InputError(f"{watch.folder} is also where the results shall go.", hint="Choose another -o.")
    if "video" in options.formats:
        raise UsageError("--format video needs videos as INPUT, --watch takes pictures.")
    request = request_of(model, options, {"watch": utf8(str(watch.folder.resolve()))})
    with open_run(model, out, options, request, live=True, inputs=[str(watch.folder)]) as run:
        arrivals = Arrivals(watch, out, run.job.file_names())
        complete, last = True, time.monotonic()
        while complete and not stop.is_set():
            names = arrivals.poll(time.monotonic())
            if names:
                items = Coming(run.job.num_done, names, watch.folder)
                try:
                    complete = run.carry(items, _stopping(on_progress, stop), Reader())
                except _Stopped:
                    break
            if names or arrivals.growing:
                last = time.monotonic()
            elif watch.idle_timeout is not None and time.monotonic() - last >= watch.idle_timeout:
                break
            stop.wait(0 if names else watch.poll)
        if complete:
            run.finish()
        return run.summary(complete=complete)


class Arrivals:
    """Tells the new files below a folder that have stopped growing, each once. `known`: names that are never told."""

    def __init__(self, watch: WatchOptions, exclude: Path, known: Iterable[str]) -> None:
        self.watch = watch
        self.exclude = exclude
        self.growing: dict[str, tuple[tuple[int, int], float]] = {}
        self._known = set(known)

    def poll(self, now: float) -> list[str]:
        """Names below the folder, with forward slashes, sorted part by part. now: seconds of any steady clock."""
        found = {name: stamp for name in self._new_names() if (stamp := self._stamp(name)) is not None}
        before = self.growing
        self.growing = {
            name: before[name] if name in before and before[name][0] == stamp else (stamp, now)
            for name, stamp in found.items()
        }
        ready = [name for name, (_, since) in self.growing.items() if now - since >= self.watch.settle]
        for name in ready:
            del self.growing[name]
            self._known.add(utf8(name))
        return sorted(ready, key=lambda name: name.split("/"))

    def _new_names(self) -> Iterable[str]:
        for path in Walker(self.exclude).files(str(self.watch.folder)):
            name = path.removeprefix(joined(str(self.watch.folder)))
            if suffix_of(path) in PICTURE_SUFFIXES and utf8(name) not in self._known:
                yield name

    def _stamp(self, name: str) -> tuple[int, int] | None:
        try:
            status = (self.watch.folder / name).stat()
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns


class Coming(Arrived):
    """Files below a watched folder."""

    def __init__(self, start: int, names: Sequence[str], folder: Path) -> None:
        super().__init__(start, len(names))
        self.names = names
        self.folder = folder

    def item(self, index: int) -> Item:
        name = self.names[index - self.start]
        return Item(index, str(self.folder / name), name, full_output_name(name))


class _Stopped(Exception):
    """Unwinds the pipeline between two batches."""


def _stopping(on_progress: OnProgress, stop: threading.Event) -> OnProgress:
    def progress(done: int, failed: int) -> None:
        on_progress(done, failed)
        if stop.is_set():
            raise _Stopped

    return progress
