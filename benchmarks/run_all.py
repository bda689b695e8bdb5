"""Every figure of the README, one script after the other: make bench, or python benchmarks/run_all.py [NAME …]."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "data" / "golden"


def run(script: str, *arguments: str) -> int:
    command = [sys.executable, str(ROOT / script), *arguments]
    print(f"\n== {script} {' '.join(arguments)}", flush=True)
    return subprocess.run(command).returncode


def run_memory() -> int:
    """On the toy detector's bundle, made here."""
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "toy"
        labels = str(GOLDEN / "toy_labels.json")
        export = ["export", str(GOLDEN / "toy_deim.pth"), "-o", str(bundle), "--family", "deim", "--labels", labels]
        subprocess.run([sys.executable, "-m", "vtk.cli.main", *export], check=True)
        return run("benchmarks/run_memory.py", str(bundle))


BENCHMARKS: dict[str, Callable[[], int]] = {
    "run_memory": run_memory,
    "vision_folder": lambda: run("benchmarks/vision_folder.py"),
    "families": lambda: run("benchmarks/families.py"),
    "folder_crash": lambda: run("benchmarks/folder_crash.py"),
    "cpu_kernels": lambda: run("benchmarks/cpu_kernels.py"),
    "llm_ttft": lambda: run("benchmarks/llm_ttft.py"),
    "llm_peers": lambda: run("benchmarks/llm_peers.py"),
    "llm_memory": lambda: run("benchmarks/llm_memory.py"),
    "llm_exactness": lambda: run("benchmarks/llm_exactness.py"),
    "serve_burst": lambda: run("benchmarks/serve_burst.py"),
    "serve_soak": lambda: run("benchmarks/serve_soak.py"),
}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    failed = [name for name in names or BENCHMARKS if BENCHMARKS[name]() != 0]
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall figures reproduced")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
