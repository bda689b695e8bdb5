"""A folder of 20,000 small pictures, 1 % of them broken, through a job that is killed with -9 ten times.

    python benchmarks/folder_crash.py [--count 20000] [--kills 10] [--bundle BUNDLE] [--seed N]

Passes when the job, begun again after each kill at a random moment, ends with exactly one row per picture, exactly the
broken ones in the ledger, the files of a run that was not killed, and memory that did not grow with the pictures.
Without a bundle the model is the stub of the tests, which needs no engine: what is measured is the job around it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

STUB = Path(__file__).parents[1] / "tests" / "data" / "stub_model.py"
FORMATS = "jsonl,coco,csv,parquet,yolo"
LIMIT_MB = 50
BAD_SHARE = 0.01
LOGS = ("results.jsonl", "ledger.jsonl")


def make_pictures(folder: Path, count: int, rng: random.Random) -> set[str]:
    """`count` JPEG files of 64 x 48 pixels; the names of the broken ones."""
    noise = np.random.default_rng(0)
    kinds = []
    for _ in range(64):
        stream = io.BytesIO()
        Image.fromarray(noise.integers(0, 256, (48, 64, 3), np.uint8)).save(stream, "JPEG")
        kinds.append(stream.getvalue())
    bad = set(rng.sample(range(count), round(count * BAD_SHARE)))
    broken = (lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"<html>404</html>")
    names = set()
    for index in range(count):
        path = folder / f"{index // 1000:02}" / f"{index:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        data = kinds[index % len(kinds)]
        path.write_bytes(broken[index % 3](data) if index in bad else data)
        if index in bad:
            names.add(path.relative_to(folder).as_posix())
    return names


def command(bundle: Path | None, folder: Path, out: Path) -> list[str]:
    if bundle is None:
        return [sys.executable, str(STUB), "detect", str(folder), str(out), "0", FORMATS]
    run = [sys.executable, "-m", "vtk.cli.main", "run", str(bundle), str(folder), "-o", str(out)]
    return [*run, "--format", FORMATS, "--keep-going"]


class Rows:
    """Counts the rows of a job as they come, reading only what is new."""

    def __init__(self, out: Path) -> None:
        self.paths = [out / name for name in LOGS]
        self.read = [0, 0]
        self.count = 0

    def now(self) -> int:
        for place, path in enumerate(self.paths):
            if path.exists():
                with path.open("rb") as stream:
                    stream.seek(self.read[place])
                    data = stream.read()
                self.read[place] += len(data)
                self.count += data.count(b"\n")
        return self.count


def resident_mb(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / (1 << 20)


def kill_at(arguments: list[str], out: Path, target: int, rng: random.Random) -> int:
    """Run until `target` rows are there and a moment longer, then kill; how many rows there were."""
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        rows = Rows(out)
        while rows.now() < target and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
    return Rows(out).now()


def run_to_end(arguments: list[str], out: Path, count: int) -> tuple[float, float]:
    """Seconds, and by how many megabytes memory grew after the first tenth of the pictures."""
    start, early, peak = time.monotonic(), 0.0, 0.0
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        rows = Rows(out)
        while process.poll() is None:
            now = resident_mb(process.pid)
            if rows.now() < count // 10:
                early = max(early, now)
            peak = max(peak, now)
            time.sleep(0.05)
    if process.returncode != 0:
        sys.exit(f"the job failed with {process.returncode}")
    return time.monotonic() - start, peak - early


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and path.name not in (".lock", "job.json"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def wrong_with(out: Path, whole: Path, count: int, bad: set[str]) -> list[str]:
    rows = {name: [json.loads(line) for line in (out / name).read_text().splitlines()] for name in LOGS}
    indexes = sorted(row["index"] for name in LOGS for row in rows[name])
    checks = {
        "one row per picture": indexes == list(range(count)),
        "unique names": len({row["file_name"] for name in LOGS for row in rows[name]}) == count,
        "the broken ones in the ledger": {row["file_name"] for row in rows[LOGS[1]]} == bad,
        "the files of a run without kills": contents(out) == contents(whole),
    }
    return [name for name, holds in checks.items() if not holds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder, out, whole = (Path(scratch) / name for name in ("in", "out", "whole"))
        folder.mkdir()
        bad = make_pictures(folder, args.count, rng)
        targets = sorted(rng.randrange(args.count) for _ in range(args.kills))
        killed = [kill_at(command(args.bundle, folder, out), out, target, rng) for target in targets]
        run_to_end(command(args.bundle, folder, out), out, args.count)
        seconds, growth = run_to_end(command(args.bundle, folder, whole), whole, args.count)
        wrong = wrong_with(out, whole, args.count, bad)
    print(f"seed {args.seed}; killed after {', '.join(map(str, killed))} rows")
    print(
        f"{args.count} pictures, {len(bad)} broken; without kills {seconds:.1f} s, {args.count / seconds:.0f} images/s"
    )
    print(f"memory grew by {growth:.1f} MB after the first tenth (limit {LIMIT_MB})")
    print(f"wrong: {', '.join(wrong)}" if wrong else "as a run without kills: rows, ledger, every file")
    return 1 if wrong or growth > LIMIT_MB else 0


if __name__ == "__main__":
    sys.exit(main())
