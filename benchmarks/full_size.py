"""Export at the published sizes: seconds, peak memory and checks of `vtk export` on random weights.

    python benchmarks/full_size.py [--only NAME …] [--precision fp32] [--keep] [--folder DIR] [--json FILE]

Each checkpoint is written by a process of its own (benchmarks/full_size_weights.py), in the layout of its official
file, exported with verification by another, whose peak memory is what is printed, and removed afterwards. The largest,
dinov3-7b, runs only where it is named: its file has 27 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

WEIGHTS = Path(__file__).with_name("full_size_weights.py")
NAMES = ("sam3", "deimv2-x", "rtdetrv2-r101", "dinov3-l", "dfine-x")
LARGEST = "dinov3-7b"
HEADER = "| model | precision | checkpoint | bundle | export and verify | peak memory | checks |\n" + 7 * "|---" + "|"


@dataclass(frozen=True)
class Row:
    """One export. checks: passed and all, of its verification; peak_gb: of resident memory, mapped files included."""

    model: str
    precision: str
    checkpoint_gb: float
    bundle_gb: float
    seconds: float
    peak_gb: float
    passed: int
    checks: int
    code: int

    def line(self) -> str:
        checks = f"{self.passed} of {self.checks}" if self.code == 0 else f"exit code {self.code}"
        sizes = f"{self.checkpoint_gb:.2f} GB | {self.bundle_gb:.2f} GB"
        return (
            f"| {self.model} | {self.precision} | {sizes} | {self.seconds:.0f} s | {self.peak_gb:.2f} GB | {checks} |"
        )


def measure(name: str, precision: str, folder: Path, *, small: bool, keep: bool) -> Row:
    """Make the checkpoint, export it, and read what the export says of itself."""
    # The layouts' own suffix; a file name that says nothing, so that all is inferred from tensors.
    checkpoint, bundle = folder / f"{name}.pth", folder / f"{name}-{precision}"
    made = [sys.executable, str(WEIGHTS), name, str(checkpoint), *(["--small"] if small else [])]
    subprocess.run(made, check=True)
    command = [sys.executable, "-m", "vtk.cli.main", "export", str(checkpoint), "-o", str(bundle), "--force"]
    started = time.monotonic()
    process = subprocess.Popen([*command, "--precision", precision], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    report = json.loads((bundle / "verify.json").read_text()) if process.returncode == 0 else {"results": []}
    row = Row(
        model=name,
        precision=precision,
        checkpoint_gb=size(checkpoint) / 1e9,
        bundle_gb=size(bundle) / 1e9,
        seconds=seconds,
        peak_gb=usage.ru_maxrss * 1024 / 1e9,
        passed=sum(check["passed"] for check in report["results"]),
        checks=len(report["results"]),
        code=process.returncode,
    )
    if not keep:
        checkpoint.unlink()
        shutil.rmtree(bundle, ignore_errors=True)
    return row


def size(path: Path) -> int:
    """Bytes of a file or of all files below a folder; 0 where there is nothing."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(item.stat().st_size for item in files if item.is_file())


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=(*NAMES, LARGEST), default=NAMES, metavar="NAME")
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--keep", action="store_true", help="leave checkpoints and bundles in the folder")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.keep and args.folder is None:
        parser.error("--keep needs --folder")
    rows = []
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in args.only:
            for precision in args.precision:
                rows.append(measure(name, precision, folder, small=args.small, keep=args.keep))
                print(rows[-1].line(), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0 if all(row.code == 0 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
