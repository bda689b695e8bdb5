"""Resident memory of `vtk run` from 100 to 2,000 pictures: python benchmarks/run_memory.py BUNDLE [--size 640x480].

With `stub` for BUNDLE the model is that of the tests, which takes no time:
python benchmarks/run_memory.py stub --size 64x48 --counts 1000,20000.

Every job runs in its own process over generated JPEG files; the peak is the kernel's (ru_maxrss). Prints one line per
count and exits with 1 when the largest job needs more than 50 MB above the smallest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

LIMIT_MB = 50
CHILD = """
import json, resource, sys
from vtk.cli.main import main
code = main(["run", *sys.argv[1:]])
print(json.dumps({"code": code, "peak_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""
STUB = Path(__file__).parents[1] / "tests" / "data" / "stub_model.py"
STUB_CHILD = f"""
import json, resource, runpy, sys
bundle, source, option, out = sys.argv[1:5]
runpy.run_path({str(STUB)!r})["main"]("detect", source, out, "0", "jsonl")
print(json.dumps({{"code": 0, "peak_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}}))
"""


def make_pictures(folder: Path, count: int, size_wh: tuple[int, int]) -> None:
    """`count` JPEG files of smoothed noise; ten different ones, repeated."""
    rng = np.random.default_rng(0)
    files = []
    for number in range(10):
        small = rng.integers(0, 256, (size_wh[1] // 16 + 1, size_wh[0] // 16 + 1, 3), np.uint8)
        path = folder / f"{number:05}.jpg"
        Image.fromarray(small).resize(size_wh).save(path, quality=90)
        files.append(path.read_bytes())
    for number in range(10, count):
        (folder / f"{number:05}.jpg").write_bytes(files[number % 10])


def peak_mb(bundle: str, count: int, size_wh: tuple[int, int], options: list[str]) -> tuple[float, float]:
    """Peak resident megabytes and seconds of one job."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "in"
        folder.mkdir()
        make_pictures(folder, count, size_wh)
        child = STUB_CHILD if bundle == "stub" else CHILD
        command = [sys.executable, "-c", child, bundle, str(folder), "-o", str(Path(scratch) / "out"), *options]
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.monotonic() - start
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    report = json.loads(done.stdout.splitlines()[-1])
    if report["code"] != 0:
        raise SystemExit(done.stderr)
    return report["peak_kb"] / 1024, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--size", default="640x480", help="width x height of the pictures")
    parser.add_argument("--counts", default="100,500,2000")
    args, options = parser.parse_known_args()
    width, height = (int(number) for number in args.size.split("x"))
    peaks = []
    for count in (int(text) for text in args.counts.split(",")):
        peak, seconds = peak_mb(args.bundle, count, (width, height), options)
        peaks.append(peak)
        print(f"{count:6} pictures  peak {peak:7.1f} MB  {seconds:6.1f} s", flush=True)
    growth = max(peaks) - peaks[0]
    print(f"growth {growth:.1f} MB (limit {LIMIT_MB})")
    return 0 if growth < LIMIT_MB else 1


if __name__ == "__main__":
    sys.exit(main())
