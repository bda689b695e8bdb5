"""Folder jobs on Ray: what comes out is what one process makes, also when a worker is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from vtk.inputs import expand
from vtk.run import run_job

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None or find_spec("pandas") is None, reason="needs ray: pip install 'vtk-deploy[ray]'"
)

SCRIPT = """
    import functools, sys
    from dataclasses import replace
    from contextlib import nullcontext
    from pathlib import Path
    sys.path.insert(0, {data!r})
    import stub_model
    from vtk.inputs import expand
    from vtk.ray import RayWorkers, job, run_on_ray

    job.PICTURES_PER_SHARD = 8

    def open_stub(delay):
        return nullcontext(stub_model.StubModel("detect", delay=delay))

    source, out, delay, *limits = sys.argv[1:]
    plan = expand([source])
    report = lambda done, failed: print(done, failed, flush=True)
    for limit in limits or ["none"]:
        options = stub_model.stub_options(["jsonl", "coco", "yolo"])
        overwrite = limit.startswith("overwrite:")
        most = limit.removeprefix("overwrite:")
        options = replace(options, max_errors=None if most == "none" else int(most), overwrite=overwrite)
        summary = run_on_ray(functools.partial(open_stub, float(delay)), plan, Path(out), options, RayWorkers(), report)
        print("new", summary.num_new)
        print("end", summary.num_results, summary.num_failed, summary.complete, flush=True)
"""
ENVIRONMENT = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}


@pytest.fixture
def folder(tmp_path: Path, save_picture: Callable[..., Path]) -> Path:
    for index in range(40):
        save_picture(tmp_path / f"in/{index % 3}/{index}.png", seed=index)
    (tmp_path / "in/1/bad.jpg").write_bytes(b"no picture")
    return tmp_path / "in"


def start(tmp_path: Path, source: Path, out: Path, delay: float, *limits: str) -> subprocess.Popen[str]:
    script = tmp_path / "on_ray.py"
    script.write_text(textwrap.dedent(SCRIPT.format(data=str(Path(__file__).parents[1] / "data"))))
    command = [sys.executable, str(script), str(source), str(out), str(delay), *limits]
    environment = ENVIRONMENT | {
        "PYTHONPATH": f"{Path(__file__).parents[1] / 'data'}:{os.environ.get('PYTHONPATH', '')}"
    }
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def processes() -> list[tuple[int, int, str]]:
    """Process id, that of its parent, and command line of all processes."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    parts = (line.split(None, 2) for line in listed.splitlines())
    return [(int(pid), int(parent), text) for pid, parent, text in parts]


def family_of(pid: int) -> dict[int, str]:
    """All processes below one, with their command lines."""
    found: dict[int, str] = {}
    everyone, frontier = processes(), {pid}
    while frontier:
        children = {child: text for child, parent, text in everyone if parent in frontier and child not in found}
        found |= children
        frontier = set(children)
    return found


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Processes of Ray that hold an engine."""
    return [pid for pid, text in family_of(process.pid).items() if text.startswith("ray::") and "Worker" in text]


def same_results(one: Path, other: Path) -> None:
    names = sorted(path.relative_to(one).as_posix() for path in one.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file())
    for name in names:
        if name == "job.json":
            assert json.loads((one / name).read_text())["request"] == json.loads((other / name).read_text())["request"]
        elif name != ".lock":
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture
def local(stub: ModuleType, folder: Path, tmp_path: Path) -> Path:
    """The same job in one process."""
    options = stub.stub_options(["jsonl", "coco", "yolo"])
    run_job(stub.StubModel("detect"), expand([str(folder)]), tmp_path / "local", options, lambda done, failed: None)
    return tmp_path / "local"


def test_two_workers_leave_what_one_process_leaves(local: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed, errors = start(tmp_path, folder, out, 0).communicate(timeout=180)
    assert printed.splitlines()[-1] == "end 40 1 True", errors
    same_results(local, out)
    assert not out.with_name("out.shards").exists()
    again, _ = start(tmp_path, folder, out, 0).communicate(timeout=180)
    assert again.splitlines()[-1] == "end 40 1 True"


def test_a_killed_worker_costs_nothing(local: Path, folder: Path, tmp_path: Path) -> None:
    process = start(tmp_path, folder, tmp_path / "out", 0.2)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert 0 < int(first.split()[0]) < 41, "the job is in the middle"
    victim, *_ = workers_of(process)
    os.kill(victim, signal.SIGKILL)
    printed, errors = process.communicate(timeout=240)
    assert printed.splitlines()[-1] == "end 40 1 True", errors
    same_results(local, tmp_path / "out")


def test_a_job_goes_on_when_everything_was_killed(local: Path, folder: Path, tmp_path: Path) -> None:
    process = start(tmp_path, folder, tmp_path / "out", 0.2)
    assert process.stdout is not None
    process.stdout.readline()
    children = family_of(process.pid)
    for pid in (process.pid, *children):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "out").exists(), "nothing is merged before all shards are done"
    printed, errors = start(tmp_path, folder, tmp_path / "out", 0).communicate(timeout=180)
    assert printed.splitlines()[-1] == "end 40 1 True", errors
    same_results(local, tmp_path / "out")


def test_too_many_errors_stop_all_workers_and_the_job_goes_on_later(
    stub: ModuleType, folder: Path, tmp_path: Path
) -> None:
    """The second run, with the same limit, has nothing left to accept; of the overwritten job nothing stays."""
    out, options = tmp_path / "out", stub.stub_options(["jsonl", "coco", "yolo"])
    for text, root in ((b"", out), (b"no picture", tmp_path / "local")):
        for index in range(12):
            (folder / f"{index % 3}/{index}.jpg").write_bytes(text)
        run_job(stub.StubModel("detect"), expand([str(folder)]), root, options, lambda done, failed: None)
    process = start(tmp_path, folder, out, 0.1, "overwrite:3", "3")
    printed, errors = process.communicate(timeout=240)
    ends = [line.split()[1:] for line in printed.splitlines() if line.startswith("end")]
    news = [int(line.split()[1]) for line in printed.splitlines() if line.startswith("new")]
    assert len(ends) == 2, errors
    assert ends[0] == ends[1], "nothing was done in between"
    num_results, num_failed = map(int, ends[0][:2])
    assert 3 < num_failed <= 3 + 2 * 4, "each worker stops at one too many"
    assert news == [num_results + num_failed, 0]
    assert ends[0][2] == "False"
    assert num_results + num_failed < 53
    assert [path.name for path in out.iterdir()] == [".lock"]
    ledgers = [part / "ledger.jsonl" for part in out.with_name("out.shards").iterdir()]
    assert sum(ledger.read_bytes().count(b"\n") for ledger in ledgers) == num_failed
    printed, errors = start(tmp_path, folder, out, 0, "13").communicate(timeout=240)
    assert printed.splitlines()[-2:] == [f"new {53 - news[0]}", "end 40 13 True"], errors
    same_results(tmp_path / "local", out)


def test_the_command_line_runs_a_bundle_on_two_workers(toy_bundle: Path, tmp_path: Path) -> None:
    pictures = Path(__file__).parents[1] / "data/golden/toy_images"
    words = [sys.executable, "-m", "vtk.cli.main", "run", str(toy_bundle), str(pictures), "--backend", "ort"]
    words += ["--engine-threads", "1"]
    subprocess.run([*words, "-o", str(tmp_path / "one")], check=True, env=ENVIRONMENT, capture_output=True)
    command = [*words, "-o", str(tmp_path / "two"), "--ray", "--ray-workers", "2"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "24 results, 0 failed" in done.stdout
    same_results(tmp_path / "one", tmp_path / "two")
