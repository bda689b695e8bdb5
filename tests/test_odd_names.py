"""Names with line breaks and whatever else a file system takes: every record of a job has them as they are."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

from vtk.inputs import expand
from vtk.job_results import read_job
from vtk.merging import merge_jobs, read_shards
from vtk.naming import found_path
from vtk.run import Summary, run_job
from vtk.shards import Shard

FORMATS = ("jsonl", "coco", "yolo", "csv", "parquet", "crops", "annotated", "html")
ODD = [
    "new\nline.png",
    "carriage\rreturn.png",
    "both\r\n.png",
    "folder\n/new\nline.png",
    "tab\t.png",
    "line\u2028 next\x85.png",
    "\"quoted\", 'named'.png",
    "back\\slash \\n \\x0a \\xff.png",
    "\x1b[2J.png",
    "{a,b}*.png",
]


@pytest.fixture
def folder(tmp_path: Path, save_picture: Callable[..., Path]) -> Path:
    for seed, name in enumerate(ODD):
        save_picture(tmp_path / "in" / name, seed=seed)
        (tmp_path / "in" / name).with_suffix(".jpg").write_bytes(b"no picture")
    return tmp_path / "in"


def run(stub: ModuleType, inputs: Sequence[Path | str], out: Path, **changes: Any) -> Summary:
    options = replace(stub.stub_options(FORMATS), **changes)
    return run_job(stub.StubModel(), expand(list(map(str, inputs))), out, options, lambda done, failed: None)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def check(out: Path, folder: Path) -> None:
    """Everything that the job wrote names its pictures by their names."""
    found, ledger = rows(out / "results.jsonl"), rows(out / "ledger.jsonl")
    assert sorted(row["file_name"] for row in found) == sorted(ODD)
    assert sorted(row["file_name"] for row in ledger) == sorted(name.removesuffix(".png") + ".jpg" for name in ODD)
    assert all(row["reason"] == "not_an_image" for row in ledger)
    for row in (*found, *ledger):
        assert found_path(row["path"]) == folder / row["file_name"]
        assert found_path(row["path"]).is_file()
    names = [row["file_name"] for row in found]
    assert [image["file_name"] for image in json.loads((out / "coco.json").read_bytes())["images"]] == names
    text = (out / "detections.csv").read_bytes().decode()
    assert [row["file_name"] for row in csv.DictReader(io.StringIO(text, newline=""))] == names
    assert pq.read_table(out / "detections.parquet")["file_name"].to_pylist() == names
    for row in found:
        assert (out / f"yolo/labels/{row['output']}.txt").is_file()
        assert (out / f"annotated/{row['output']}.png").is_file()
        assert len(list((out / "crops" / row["output"]).iterdir())) == 1


def test_every_record_has_the_name_as_it_is(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    summary = run(stub, [folder], tmp_path / "out")
    assert (summary.num_results, summary.num_failed) == (len(ODD), len(ODD))
    check(tmp_path / "out", folder)
    assert run(stub, [folder], tmp_path / "out").num_new == 0
    assert [row["index"] for row in read_job(tmp_path / "out").rows()] == [
        row["index"] for row in rows(tmp_path / "out/results.jsonl")
    ]


def test_shards_of_such_names_are_merged(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    parts = [tmp_path / f"part\n{number}" for number in (1, 2, 3)]
    for number, part in enumerate(parts, start=1):
        run(stub, [folder], part, shard=Shard(number, 3))
    merge_jobs(read_shards(parts), tmp_path / "merged", lambda done, failed: None)
    check(tmp_path / "merged", folder)


def test_a_list_of_rows_is_a_list_of_inputs(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    """What has failed may be tried again: the paths of the ledger, each with a NUL behind it."""
    run(stub, [folder], tmp_path / "out")
    paths = [row["path"] for row in rows(tmp_path / "out/ledger.jsonl")]
    (tmp_path / "again.txt").write_bytes(b"".join(path.encode() + b"\0" for path in paths))
    again = run(stub, [tmp_path / "again.txt"], tmp_path / "again")
    assert again.failures == {"not_an_image": len(ODD)}
    assert [row["path"] for row in rows(tmp_path / "again/ledger.jsonl")] == paths
