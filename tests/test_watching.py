"""A watched folder: whole files only, each once, across restarts, and a clean end."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from vtk.cli.main import main
from vtk.errors import InputError, UsageError
from vtk.run import Summary
from vtk.sinks.parquet import read_embeddings
from vtk.watching import Arrivals, WatchOptions, watch_job

SavePicture = Callable[..., Path]
WATCH_SCRIPT = """
import signal, sys
from contextlib import nullcontext
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
spec = spec_from_file_location("stub_model", sys.argv[1])
stub = module_from_spec(spec)
sys.modules["stub_model"] = stub
spec.loader.exec_module(stub)
import vtk.bundle, vtk.predictor
from vtk.cli.main import main

model = stub.StubModel()
vtk.bundle.read_bundle = lambda path: model.bundle
vtk.predictor.open_predictor = lambda bundle, **options: nullcontext(model)
sys.exit(main(sys.argv[2:]))
"""


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def arrivals(folder: Path, known: tuple[str, ...] = ()) -> Arrivals:
    return Arrivals(WatchOptions(folder, settle=2.0), folder / "out", known)


def test_a_file_is_told_once_and_only_when_it_has_stopped_growing(tmp_path: Path) -> None:
    watched = arrivals(tmp_path)
    (tmp_path / "a.jpg").write_bytes(b"1")
    assert watched.poll(0.0) == []
    (tmp_path / "a.jpg").write_bytes(b"12")
    assert watched.poll(3.0) == [], "it has grown"
    assert watched.poll(4.9) == [], "not for two seconds"
    assert watched.growing
    assert watched.poll(5.0) == ["a.jpg"]
    assert not watched.growing
    (tmp_path / "a.jpg").write_bytes(b"123")
    assert watched.poll(8.0) == watched.poll(11.0) == [], "known by its name"


def test_a_file_of_equal_size_that_is_written_to_is_not_whole(tmp_path: Path) -> None:
    watched = arrivals(tmp_path)
    (tmp_path / "a.jpg").write_bytes(b"00")
    os.utime(tmp_path / "a.jpg", ns=(1, 1))
    watched.poll(0.0)
    os.utime(tmp_path / "a.jpg", ns=(2, 2))
    assert watched.poll(3.0) == []
    assert watched.poll(5.0) == ["a.jpg"]


def test_only_pictures_outside_the_results_are_told_in_order(tmp_path: Path) -> None:
    for name in ("b/2.png", "a.jpg", ".hidden.jpg", "notes.txt", "out/annotated/a.jpg", "b/1.png", "done.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    watched = arrivals(tmp_path, ("done.jpg",))
    watched.poll(0.0)
    assert watched.poll(2.0) == ["a.jpg", "b/1.png", "b/2.png"]


def test_a_file_that_goes_away_is_forgotten(tmp_path: Path) -> None:
    watched = arrivals(tmp_path)
    (tmp_path / "a.jpg").write_bytes(b"x")
    watched.poll(0.0)
    (tmp_path / "a.jpg").unlink()
    assert watched.poll(5.0) == []
    assert not watched.growing


def watch(
    stub: ModuleType, folder: Path, out: Path, task: str = "detect", *, on_progress: Any = None, **changes: Any
) -> Summary:
    options = WatchOptions(folder, poll=0.01, settle=0.02, idle_timeout=0.1)
    formats = {"detect": ("jsonl", "coco", "yolo"), "embed": ("parquet",)}[task]
    return watch_job(
        stub.StubModel(task),
        options,
        out,
        stub.stub_options(formats, task=task),
        on_progress or (lambda done, failed: None),
        changes.get("stop") or threading.Event(),
    )


def test_pictures_that_come_later_are_taken_and_a_restart_goes_on(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    save_picture(folder / "a.jpg", seed=1)
    (folder / "bad.jpg").write_bytes(b"broken")
    came = []

    def next_one(done: int, failed: int) -> None:
        if done >= 2 and not came:
            came.append(save_picture(tmp_path / "b.png", seed=2).rename(folder / "b.png"))

    first = watch(stub, folder, out, on_progress=next_one)
    assert (first.num_results, first.num_failed, first.complete) == (2, 1, True)
    save_picture(folder / "a.png", seed=3)
    second = watch(stub, folder, out)
    assert (second.num_new, second.num_results, second.num_failed) == (1, 3, 1)
    found = rows(out / "results.jsonl")
    assert [(row["index"], row["file_name"], row["output"]) for row in found] == [
        (0, "a.jpg", "a.jpg"),
        (2, "b.png", "b.png"),
        (3, "a.png", "a.png"),
    ]
    images = json.loads((out / "coco.json").read_text())["images"]
    assert [image["file_name"] for image in images] == ["a.jpg", "b.png", "a.png"]
    assert {path.name for path in (out / "yolo/labels").iterdir()} == {"a.jpg.txt", "b.png.txt", "a.png.txt"}


def test_embeddings_of_later_pictures_join_the_finished_table(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    for seed in range(3):
        save_picture(folder / f"{seed}.png", seed=seed)
        watch(stub, folder, out, "embed")
    table = pq.read_table(out / "embeddings.parquet")
    assert table["file_name"].to_pylist() == ["0.png", "1.png", "2.png"]
    vectors = [value.pooled for value in read_embeddings(out / "embeddings.parquet")]
    assert len({float(vector[0]) for vector in vectors}) == 3
    assert all(np.array_equal(vector, np.full(4, vector[0])) for vector in vectors)


def test_a_stop_ends_between_two_batches_and_makes_the_last_files(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    for seed in range(20):
        save_picture(tmp_path / f"in/{seed:02}.png", seed=seed)
    stop = threading.Event()
    summary = watch(
        stub,
        tmp_path / "in",
        tmp_path / "out",
        stop=stop,
        on_progress=lambda done, failed: stop.set() if done >= 8 else None,
    )
    assert (summary.num_results, summary.complete) == (8, True)
    assert len(json.loads((tmp_path / "out/coco.json").read_text())["images"]) == 8
    assert watch(stub, tmp_path / "in", tmp_path / "out").num_results == 20
    names = [row["file_name"] for row in rows(tmp_path / "out/results.jsonl")]
    assert names == [f"{seed:02}.png" for seed in range(20)]


def test_a_watched_folder_must_exist_and_be_the_same(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    with pytest.raises(InputError, match="not a folder"):
        watch(stub, tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(InputError, match="also where the results shall go"):
        watch(stub, tmp_path, tmp_path)
    save_picture(tmp_path / "in/a.png")
    watch(stub, tmp_path / "in", tmp_path / "out")
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match=r"inputs\.watch"):
        watch(stub, tmp_path / "other", tmp_path / "out")


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, "the process ended early"
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_cleanly(tmp_path: Path, save_picture: SavePicture, number: signal.Signals) -> None:
    save_picture(tmp_path / "in/a.png")
    out = tmp_path / "out"
    stub_path = str(Path(__file__).parent / "data/stub_model.py")
    arguments = [
        "run",
        "bundle",
        "--watch",
        str(tmp_path / "in"),
        "-o",
        str(out),
        "--format",
        "coco",
        "--settle",
        "0.05",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", WATCH_SCRIPT, stub_path, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: (out / "results.jsonl").exists() and b"\n" in (out / "results.jsonl").read_bytes(), process)
        assert not (out / "coco.json").exists()
        process.send_signal(number)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "1 result, 0 failed" in printed
    assert len(json.loads((out / "coco.json").read_text())["images"]) == 1
    assert not (out / ".tmp").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "There is no INPUT"),
        (["in", "--watch", "in"], "takes the place of INPUT"),
        (["in", "--settle", "1"], "--settle is for --watch"),
        (["in", "--idle-timeout", "1"], "--idle-timeout is for --watch"),
        (["--watch", "in", "--shard", "1/2"], "--shard needs pictures that are known beforehand"),
        (["in", "--shard", "3/2"], "--shard 3/2 names no part"),
    ],
)
def test_arguments_that_contradict_are_refused(
    stub: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr("vtk.bundle.read_bundle", lambda path: stub.StubModel().bundle)
    assert main(["run", "bundle", *arguments, "-o", str(tmp_path / "out")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("task", ["detect", "embed"])
def test_a_watch_that_was_cut_off_goes_on_where_it_was(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture, task: str
) -> None:
    """Nothing is made at the end, and what has no row is taken again, once."""
    for seed in range(12):
        save_picture(tmp_path / f"in/{seed:02}.png", seed=seed)

    def cut_off(done: int, failed: int) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(stub, tmp_path / "in", tmp_path / "out", task, on_progress=cut_off)
    assert not (tmp_path / "out/coco.json").exists()
    assert not (tmp_path / "out/embeddings.parquet").exists()
    with (tmp_path / "out/results.jsonl").open("ab") as torn:
        torn.write(b'{"index": 8, "path": "')
    summary = watch(stub, tmp_path / "in", tmp_path / "out", task)
    assert (summary.num_new, summary.num_results) == (4, 12)
    assert [row["file_name"] for row in rows(tmp_path / "out/results.jsonl")] == [
        f"{seed:02}.png" for seed in range(12)
    ]
    if task == "embed":
        vectors = [value.pooled[0] for value in read_embeddings(tmp_path / "out/embeddings.parquet")]
        assert len(set(vectors)) == 12
