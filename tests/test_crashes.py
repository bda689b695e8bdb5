"""A job that is killed with -9 at ten random moments, and always begun again, ends as if it had not been (case V57)."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

STUB_SCRIPT = Path(__file__).parent / "data" / "stub_model.py"
CRASH_SCRIPT = STUB_SCRIPT.with_name("crash_points.py")
NUM_KILLS = 10
NUM_PICTURES = 120
BAD = frozenset((0, 31, 32, 33, 99, 119))
FORMATS = {"detect": "jsonl,coco,yolo,csv,parquet,crops,annotated", "embed": "parquet,npz"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np
    from PIL import Image

    root = tmp_path_factory.mktemp("crashes") / "in"
    root.mkdir()
    for index in range(NUM_PICTURES):
        path = root / f"{index:03}.jpg"
        pixels = np.random.default_rng(index).integers(0, 256, (16, 24, 3), np.uint8)
        Image.fromarray(pixels).save(path)
        if index in BAD:
            path.write_bytes(path.read_bytes()[:300])
    return root


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def command(task: str, folder: Path, out: Path, delay: str) -> list[str]:
    return [sys.executable, str(STUB_SCRIPT), task, str(folder), str(out), delay, FORMATS[task]]


def num_done(out: Path) -> int:
    logs = (out / name for name in ("results.jsonl", "ledger.jsonl"))
    return sum(log.read_bytes().count(b"\n") for log in logs if log.exists())


def kill_somewhere(task: str, folder: Path, out: Path, rng: random.Random) -> bool:
    """Start the job, kill it after a few more rows and an odd moment; whether it was still alive."""
    target = min(NUM_PICTURES, num_done(out) + rng.randrange(2 * NUM_PICTURES // NUM_KILLS))
    with subprocess.Popen(command(task, folder, out, "0.002"), stdout=subprocess.DEVNULL) as process:
        while num_done(out) < target and process.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.02)
        alive = process.poll() is None
        process.send_signal(signal.SIGKILL)
    return alive


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and path.name not in (".lock", "job.json"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("task", ["detect", "embed"])
def test_ten_kills_lose_nothing_and_double_nothing(tmp_path: Path, folder: Path, task: str) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    out, whole = tmp_path / "out", tmp_path / "whole"
    kills = sum(kill_somewhere(task, folder, out, rng) for _ in range(NUM_KILLS))
    assert kills >= NUM_KILLS // 2
    subprocess.run(command(task, folder, out, "0"), check=True, stdout=subprocess.DEVNULL)
    found, ledger = rows(out / "results.jsonl"), rows(out / "ledger.jsonl")
    assert {row["index"] for row in ledger} == BAD
    assert [row["index"] for row in found] == [index for index in range(NUM_PICTURES) if index not in BAD]
    assert [row["file_name"] for row in found] == [f"{row['index']:03}.jpg" for row in found]
    subprocess.run(command(task, folder, whole, "0"), check=True, stdout=subprocess.DEVNULL)
    assert contents(out).keys() == contents(whole).keys()
    assert [name for name, data in contents(whole).items() if contents(out)[name] != data] == []


@pytest.mark.parametrize("task", ["detect", "embed", "segment"])
def test_a_kill_at_any_point_of_writing_is_made_good(tmp_path: Path, folder: Path, task: str) -> None:
    """Before, within and after a line, and around every file that takes its place; then once more at random."""
    few = tmp_path / "in"
    few.mkdir()
    for index in (*range(6), 31, 99, 118):
        (few / f"{index:03}.jpg").write_bytes((folder / f"{index:03}.jpg").read_bytes())
    formats = {"segment": "jsonl,masks,coco"}.get(task, FORMATS.get(task, ""))
    seed = random.randrange(1 << 30)
    arguments = [task, formats, str(few), str(tmp_path / "scratch"), "16", str(seed)]
    done = subprocess.run([sys.executable, str(CRASH_SCRIPT), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
