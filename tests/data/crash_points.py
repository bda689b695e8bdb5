"""Runs a job in forked children that kill themselves with -9 at chosen points of their writing, and compares the ends.

Points are calls by which a job changes its folder: before, in the middle of, and after `os.write`; before and after a
file takes its place, goes away or is cut. As a script: TASK FORMATS FOLDER SCRATCH NUM_POINTS SEED.
"""

import os
import random
import signal
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

spec = spec_from_file_location("stub_model", Path(__file__).with_name("stub_model.py"))
assert spec is not None
assert spec.loader is not None
stub = module_from_spec(spec)
sys.modules["stub_model"] = stub
spec.loader.exec_module(stub)


class Points:
    """Counts the points of a process and kills it at number `last`."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.count = 0

    def pass_one(self) -> None:
        """Be at a point."""
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call with a point before and after it."""

        def wrapped(*args: Any, **options: Any) -> Any:
            self.pass_one()
            result = call(*args, **options)
            self.pass_one()
            return result

        return wrapped

    def install(self) -> None:
        """Put points around what changes files."""
        write = os.write

        def torn(file: int, data: bytes) -> int:
            self.pass_one()
            half = write(file, data[: len(data) // 2])
            self.pass_one()
            done = half + write(file, data[half:])
            self.pass_one()
            return done

        os.write = torn
        os.ftruncate = self.around(os.ftruncate)
        Path.replace = self.around(Path.replace)  # type: ignore[method-assign]
        Path.unlink = self.around(Path.unlink)  # type: ignore[method-assign]


def run(task: str, folder: str, out: Path, formats: str, last: int | None) -> int:
    """Run the job in a child; how many points it passed, or -1 if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        points = Points(last)
        send = os.write
        points.install()
        stub.main(task, folder, str(out), "0", formats)
        send(writing, str(points.count).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        told = stream.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, f"the job failed with {status}"
    return int(told) if told else -1


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and path.name not in (".lock", "job.json"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def main(task: str, formats: str, folder: str, scratch: str, num_points: str, seed: str) -> None:
    whole = Path(scratch) / "whole"
    total = run(task, folder, whole, formats, None)
    expected = contents(whole)
    rng = random.Random(int(seed))
    points = range(total) if total <= int(num_points) else sorted(rng.sample(range(total), int(num_points)))
    wrong = []
    for point in points:
        out = Path(scratch) / str(point)
        killed = run(task, folder, out, formats, point)
        run(task, folder, out, formats, rng.randrange(total))
        while run(task, folder, out, formats, None) < 0:
            pass
        if contents(out) != expected:
            wrong.append(point)
        assert killed == -1 or point > total // 2, "threads may shift points, but not so far"
    print(f"{len(points)} of {total} points, wrong at {wrong}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
