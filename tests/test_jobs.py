"""The job folder: what a row means, how a job goes on, and what is refused (case V57)."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.errors import UsageError
from vtk.items import Item
from vtk.job_results import Counts, count_rows, total
from vtk.jobs import Job, delete_job, open_job
from vtk.sinks.jsonl import LineLog

REQUEST = {"post": {"score": 0.3, "top_k": 5}, "formats": ["jsonl"]}


def item(index: int) -> Item:
    return Item(index, f"in/{index}.jpg", f"{index}.jpg", str(index))


def row(index: int) -> dict[str, Any]:
    return {"index": index, "path": f"in/{index}.jpg", "name": "你好"}


def started(root: Path, request: object = REQUEST, **options: Any) -> Any:
    return open_job(root, request, notes={}, outputs=("yolo", "coco.json"), **options)  # type: ignore[arg-type]


def fill(root: Path, failed: tuple[int, ...], end: int) -> None:
    with started(root) as job:
        for index in range(job.num_done, end):
            if index in failed:
                job.add_failure(item(index), "truncated", "cut")
            else:
                job.add_result(row(index))


def indexes(path: Path) -> list[int]:
    return [json.loads(line)["index"] for line in path.read_text().splitlines()]


def test_results_and_failures_are_counted_and_kept(tmp_path: Path) -> None:
    fill(tmp_path / "out", (1, 3), 5)
    with started(tmp_path / "out") as job:
        assert (job.num_done, job.num_failed, job.results.count) == (5, 2, 3)
        assert job.reasons == {"truncated": 2}
    assert indexes(tmp_path / "out/results.jsonl") == [0, 2, 4]
    assert json.loads((tmp_path / "out/ledger.jsonl").read_text().splitlines()[0]) == {
        "index": 1,
        "path": "in/1.jpg",
        "file_name": "1.jpg",
        "reason": "truncated",
        "message": "cut",
    }


@pytest.mark.parametrize("tail", [b"", b'{"index": 9, "reason"', b"\x00\x00\n", b"\x00\x00\n" + b'{"index": 9}\n'])
def test_rows_are_counted_without_a_lock_and_up_to_the_first_that_is_not_whole(tmp_path: Path, tail: bytes) -> None:
    """Of a job that is at work, was killed, or is not there yet."""
    assert count_rows(tmp_path / "out") == Counts(0, Counter())
    fill(tmp_path / "out", (1, 3), 7)
    for name in ("results.jsonl", "ledger.jsonl"):
        with (tmp_path / "out" / name).open("ab") as stream:
            stream.write(tail)
    counts = count_rows(tmp_path / "out")
    assert (counts.num_results, counts.failures, counts.num_failed, counts.num_done) == (5, {"truncated": 2}, 2, 7)
    assert total([counts, counts, Counts(1, Counter(corrupt=1))]) == Counts(11, Counter(truncated=4, corrupt=1))
    assert total([]) == Counts(0, Counter())


@settings(max_examples=40, deadline=None)
@given(
    failed=st.frozensets(st.integers(0, 9)),
    cuts=st.tuples(st.integers(0, 700), st.integers(0, 700)),
    garbage=st.sampled_from(
        [b"", b"{", b"\x00\x00\n", b'{"index": 7, "path": "in'],
    ),
)
def test_any_damage_resumes_to_the_longest_whole_prefix(
    tmp_path_factory: pytest.TempPathFactory, failed: frozenset[int], cuts: tuple[int, int], garbage: bytes
) -> None:
    """Cut both files anywhere, add a torn tail: no row is lost before the first gap, none is doubled."""
    root = tmp_path_factory.mktemp("job")
    fill(root, tuple(failed), 10)
    survivors: set[int] = set()
    for name, cut in zip(("results.jsonl", "ledger.jsonl"), cuts, strict=True):
        kept = (root / name).read_bytes()[:cut]
        survivors |= {json.loads(line)["index"] for line in kept.splitlines(keepends=True) if line.endswith(b"\n")}
        (root / name).write_bytes(kept + garbage)
    prefix = next(index for index in range(11) if index not in survivors)
    with started(root) as job:
        assert job.num_done == prefix
    fill(root, tuple(failed), 10)
    assert sorted(indexes(root / "results.jsonl") + indexes(root / "ledger.jsonl")) == list(range(10))
    assert indexes(root / "results.jsonl") == sorted(indexes(root / "results.jsonl"))


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"index": 0}\n{"index": 1}\n{"index": 2')
    with LineLog(log) as lines:
        assert list(lines.indexes()) == [0, 1]
        lines.resume(2)
        lines.append({"index": 2})
        assert lines.count == 3
    assert log.read_bytes() == b'{"index": 0}\n{"index": 1}\n{"index": 2}\n'


def test_results_that_are_deleted_meanwhile_are_no_success(tmp_path: Path) -> None:
    """Their file goes on taking rows that nobody will see."""
    log = tmp_path / "log.jsonl"
    lines = LineLog(log)
    lines.append(row(0))
    lines.sync()
    log.unlink()
    with pytest.raises(FileNotFoundError, match=r"log\.jsonl"):
        lines.sync()
    with pytest.raises(FileNotFoundError, match=r"log\.jsonl"):
        lines.close()


def test_other_options_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    fill(tmp_path, (), 3)
    before = (tmp_path / "results.jsonl").read_bytes()
    other = {"post": {"score": 0.5, "top_k": 5}, "formats": ["jsonl"], "inputs": {"pictures": 3}}
    expected = r"differently \(inputs\.pictures: null → 3; post\.score: 0\.3 → 0\.5\)"
    with pytest.raises(UsageError, match=expected) as caught, started(tmp_path, other):
        pass
    assert "--overwrite" in str(caught.value)
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_overwrite_deletes_what_jobs_write_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path, (), 3)
    (tmp_path / "yolo/labels").mkdir(parents=True)
    (tmp_path / "coco.json").write_text("{}")
    (tmp_path / "mine.txt").write_text("keep")
    with started(tmp_path, {"score": 0.5}, overwrite=True) as job:
        assert job.num_done == 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".lock") == [
        "job.json",
        "ledger.jsonl",
        "mine.txt",
        "results.jsonl",
    ]


@pytest.mark.parametrize("name", ["", "yolo/labels/a.jpg", "results.jsonl", "link.jpg"])
def test_overwriting_never_deletes_an_input(tmp_path: Path, name: str) -> None:
    """Pictures that an earlier job made, or a shard that is to be merged, may be what the new one is to read."""
    root = tmp_path / "job"
    fill(root, (), 3)
    (root / "yolo/labels").mkdir(parents=True)
    (root / "yolo/labels/a.jpg").write_text("work of hours")
    (root / "link.jpg").symlink_to(root / "yolo/labels/a.jpg")
    inputs = ["s3://bucket/a.jpg", str(tmp_path), str(root / name)]
    with (
        pytest.raises(UsageError, match="is an input"),
        started(root, {"score": 0.5}, overwrite=True, inputs=inputs),
    ):
        pass
    assert (root / "yolo/labels/a.jpg").read_text() == "work of hours"
    assert indexes(root / "results.jsonl") == [0, 1, 2]


def test_overwriting_spares_inputs_that_no_job_writes(tmp_path: Path) -> None:
    fill(tmp_path, (), 3)
    (tmp_path / "mine.jpg").write_text("keep")
    with started(tmp_path, {"score": 0.5}, overwrite=True, inputs=[str(tmp_path / "mine.jpg")]) as job:
        assert job.num_done == 0
    assert (tmp_path / "mine.jpg").read_text() == "keep"


def test_deleting_a_job_spares_what_it_has_not_written_and_inputs(tmp_path: Path) -> None:
    delete_job(tmp_path / "none", outputs=("yolo",), inputs=())
    assert not (tmp_path / "none").exists()
    fill(tmp_path, (1,), 3)
    (tmp_path / "yolo").mkdir()
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="is an input"):
        delete_job(tmp_path, outputs=("yolo",), inputs=[str(tmp_path / "yolo/a.jpg")])
    with started(tmp_path), pytest.raises(UsageError, match="Another vtk process"):
        delete_job(tmp_path, outputs=("yolo",), inputs=())
    assert indexes(tmp_path / "results.jsonl") == [0, 2]
    delete_job(tmp_path, outputs=("yolo",), inputs=[str(tmp_path / "mine.txt")])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "mine.txt"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.doc").write_text("years of work")
    with pytest.raises(UsageError, match=r"thesis\.doc"), started(tmp_path, overwrite=overwrite):
        pass
    assert (tmp_path / "thesis.doc").read_text() == "years of work"


@pytest.mark.parametrize("text", ["[]", "[" * 100_000])
def test_a_damaged_job_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(UsageError, match="not a readable job"), started(tmp_path):
        pass


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(UsageError, match="is a file, not a folder"), started(tmp_path / "out"):
        pass


HOLD = """
import sys, time
from pathlib import Path
from vtk.jobs import open_job
with open_job(Path(sys.argv[1]), {"post": {"score": 0.3, "top_k": 5}, "formats": ["jsonl"]}, notes={}, outputs=()):
    print("open", flush=True)
    time.sleep(60)
"""


def test_two_processes_do_not_share_a_folder_and_a_dead_one_frees_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(UsageError, match=f"pid {other.pid}"), started(tmp_path):
            pass
        other.kill()
    with started(tmp_path) as job:
        assert job.num_done == 0


def test_a_full_disk_leaves_a_tail_that_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def full(file: int, data: bytes) -> int:
        if b'"index": 2' in data:
            return write(file, data[:5])
        raise OSError(28, "No space left on device")

    fill(tmp_path, (), 2)
    with started(tmp_path) as job:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            job.add_result(row(2))
        monkeypatch.undo()
    fill(tmp_path, (), 4)
    assert indexes(tmp_path / "results.jsonl") == [0, 1, 2, 3]


def test_a_row_out_of_order_is_a_bug(tmp_path: Path) -> None:
    with started(tmp_path) as job:
        assert isinstance(job, Job)
        with pytest.raises(AssertionError):
            job.add_result(row(1))
