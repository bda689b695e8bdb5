"""Results that cannot be written: a job stops, and goes on later as if nothing had been; a name costs its picture."""

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from vtk.errors import OutputError
from vtk.inputs import expand
from vtk.run import Summary, run_job
from vtk.sinks import annotated

NUM_PICTURES = 12
OF_THE_DISK = ("ENOSPC", "EDQUOT", "EROFS", "EIO", "EACCES", "EPERM", "EMFILE", "ENOENT", "ESTALE", "EFBIG")
OF_A_NAME = ("ENAMETOOLONG", "EILSEQ", "EINVAL", "ENOTDIR", "EISDIR", "EEXIST")


@pytest.fixture
def folder(tmp_path: Path, save_picture: Callable[..., Path]) -> Path:
    for index in range(NUM_PICTURES):
        save_picture(tmp_path / f"in/{index:02}.png", seed=index)
    return tmp_path / "in"


def run(stub: ModuleType, source: Path, out: Path, model: Any = None, **changes: Any) -> Summary:
    options = replace(stub.stub_options(("jsonl", "yolo")), **changes)
    return run_job(model or stub.StubModel(), expand([str(source)]), out, options, lambda done, failed: None)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and path.name not in (".lock", "job.json"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> None:
    """A file system that does not take the file of that name."""
    replace_file = Path.replace

    def refused(self: Path, target: Path) -> Path:
        if target.name == name:
            number = getattr(errno, code)
            raise OSError(number, os.strerror(number), str(self), None, str(target))
        return replace_file(self, target)

    monkeypatch.setattr(Path, "replace", refused)


@pytest.mark.parametrize("dedupe", [False, True])
@pytest.mark.parametrize("code", OF_THE_DISK)
def test_what_is_not_the_picture_s_fault_stops_the_job_and_costs_nothing(
    stub: ModuleType, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, dedupe: bool
) -> None:
    (folder / "06.png").write_bytes((folder / "05.png").read_bytes())
    refuse(monkeypatch, "06.txt", code)
    with pytest.raises(OutputError, match=r"yolo/labels/06\.txt: .*same command") as caught:
        run(stub, folder, tmp_path / "out", dedupe=dedupe)
    assert os.strerror(getattr(errno, code)) in str(caught.value)
    assert caught.value.exit_code == 1
    done = len(rows(tmp_path / "out/results.jsonl"))
    assert done <= 6
    assert rows(tmp_path / "out/ledger.jsonl") == []
    monkeypatch.undo()
    summary = run(stub, folder, tmp_path / "out", dedupe=dedupe)
    assert (summary.num_results, summary.num_failed, summary.num_new) == (NUM_PICTURES, 0, NUM_PICTURES - done)
    run(stub, folder, tmp_path / "whole", dedupe=dedupe)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("code", OF_A_NAME)
def test_a_name_that_is_refused_costs_its_picture_only(
    stub: ModuleType, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    refuse(monkeypatch, "06.txt", code)
    summary = run(stub, folder, tmp_path / "out")
    assert (summary.num_results, summary.failures, summary.complete) == (NUM_PICTURES - 1, {"unwritable": 1}, True)
    (row,) = rows(tmp_path / "out/ledger.jsonl")
    assert row["file_name"] == "06.png"
    assert os.strerror(getattr(errno, code)) in row["message"]
    assert run(stub, folder, tmp_path / "out").num_new == 0, "it would be refused again"


def test_a_folder_in_the_place_of_a_file_costs_one_of_the_two(
    stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path]
) -> None:
    """The labels of `a.png` are `a.txt`, and so is the folder of the labels of `a.txt/b.png`."""
    save_picture(tmp_path / "in/a.png")
    save_picture(tmp_path / "in/a.txt/b.png")
    save_picture(tmp_path / "in/c.png")
    summary = run(stub, tmp_path / "in", tmp_path / "out")
    assert (summary.num_results, summary.failures, summary.complete) == (2, {"unwritable": 1}, True)


def test_what_an_encoder_cannot_write_costs_its_picture_only(
    stub: ModuleType, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow raises OSError without a number, as for a JPEG of more than 65,500 pixels a side."""
    save = annotated.save_picture

    def limited(stream: Any, picture: Any, *, as_jpeg: bool) -> None:
        if picture.width == 30:
            raise OSError("encoder error -2 when writing image file")
        save(stream, picture, as_jpeg=as_jpeg)

    monkeypatch.setattr(annotated, "save_picture", limited)
    Image.new("RGB", (30, 8), "white").save(folder / "03.png")
    summary = run(stub, folder, tmp_path / "out", formats=("jsonl", "annotated"))
    assert (summary.num_results, summary.failures, summary.complete) == (NUM_PICTURES - 1, {"unwritable": 1}, True)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As a disk that is full: a write beyond is cut, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_picture_that_does_not_fit_stops_the_job(
    stub: ModuleType, tmp_path: Path, folder: Path, save_picture: Callable[..., Path]
) -> None:
    save_picture(folder / "07.png", seed=7, size_wh=(90, 90))
    formats = ("jsonl", "annotated")
    with files_of_at_most(20_000), pytest.raises(OutputError, match="File too large"):
        run(stub, folder, tmp_path / "out", formats=formats)
    assert {row["index"] for row in rows(tmp_path / "out/results.jsonl")} == set(range(4))
    assert rows(tmp_path / "out/ledger.jsonl") == []
    assert run(stub, folder, tmp_path / "out", formats=formats).num_results == NUM_PICTURES
    run(stub, folder, tmp_path / "whole", formats=formats)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_row_that_does_not_fit_stops_the_job(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    with files_of_at_most(2_000), pytest.raises(OutputError, match="File too large"):
        run(stub, folder, tmp_path / "out")
    assert 0 < (tmp_path / "out/results.jsonl").read_bytes().count(b"\n") < NUM_PICTURES
    assert run(stub, folder, tmp_path / "out").num_results == NUM_PICTURES
    run(stub, folder, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_folder_that_is_closed_meanwhile_stops_the_job(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    labels = tmp_path / "out/yolo/labels"
    (tmp_path / "probe").mkdir(mode=0o555)
    if os.access(tmp_path / "probe", os.W_OK):
        pytest.skip("this user writes into any folder")

    class Closing(stub.StubModel):  # type: ignore[misc, name-defined]
        def infer(self, tensors: Any) -> Any:
            if len(self.calls) == 2:
                labels.chmod(0o555)
            return super().infer(tensors)

    with pytest.raises(OutputError, match=r"yolo/labels/.*: Permission denied"):
        run(stub, folder, tmp_path / "out", Closing())
    done = len(rows(tmp_path / "out/results.jsonl"))
    assert done <= 8
    assert rows(tmp_path / "out/ledger.jsonl") == []
    labels.chmod(0o755)
    assert run(stub, folder, tmp_path / "out").num_new == NUM_PICTURES - done
