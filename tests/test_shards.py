"""Shards: every picture in exactly one, and merged they are the folder that one run would have left."""

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.cli.main import main
from vtk.errors import UsageError
from vtk.inputs import expand
from vtk.items import FoundItems, Items
from vtk.jobs import Job
from vtk.merging import merge_jobs, read_shards
from vtk.run import Summary, run_job
from vtk.shards import Shard, parse_shard
from vtk.sinks.base import Row

SavePicture = Callable[..., Path]
FORMATS = {
    "detect": ("jsonl", "coco", "yolo", "csv", "parquet", "crops", "annotated"),
    "segment": ("jsonl", "coco", "yolo", "csv", "parquet", "masks", "annotated"),
    "embed": ("parquet", "npz"),
    "classify": ("csv", "parquet"),
}


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), unique=True), st.integers(1, 9)
)
def test_shards_are_disjoint_and_complete(names: list[str], of: int) -> None:
    found = FoundItems()
    for index, name in enumerate(names):
        found.add(f"in/{index}-{name}", f"/in/{index}-{name}")
    items = Items(found, "/in")
    parts = [Shard(number, of).select(items) for number in range(1, of + 1)]
    assert sorted((item for part in parts for item in part), key=lambda item: item.index) == list(items)


def test_a_picture_stays_in_its_shard_whatever_else_there_is() -> None:
    """The hash is SHA-256, not Python's own, which differs between processes."""
    names = [f"{index}.jpg" for index in range(12)]
    assert [Shard(1, 3).holds(name) for name in names] == [Shard(1, 3).holds(name) for name in reversed(names)][::-1]
    assert [name for name in names if Shard(1, 3).holds(name)] == ["0.jpg", "2.jpg", "5.jpg", "7.jpg", "11.jpg"]


def test_shards_are_about_equally_large() -> None:
    names = [f"{index:06}.jpg" for index in range(8000)]
    sizes = [sum(Shard(number, 8).holds(name) for name in names) for number in range(1, 9)]
    assert sum(sizes) == 8000
    assert max(sizes) - min(sizes) < 250


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "1/0", "a/b", "1/2/3", "-1/3", "1 /3", ""])
def test_what_names_no_part_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no part"):
        parse_shard(text)


def test_the_last_part_is_a_part() -> None:
    assert parse_shard("3/3") == Shard(3, 3)


@pytest.fixture
def folder(tmp_path: Path, save_picture: SavePicture) -> Path:
    """40 pictures in two folders, four of them broken, two with odd names."""
    for index in range(34):
        save_picture(tmp_path / f"in/part{index % 2}/{index:02}.{'jpg' if index % 3 else 'png'}", seed=index)
    save_picture(tmp_path / "in/你好 é#.jpg", seed=90)
    save_picture(tmp_path / "in/part0/00.jpg", seed=91)
    for index in range(4):
        (tmp_path / f"in/part1/bad{index}.jpg").write_bytes(b"broken" * index)
    return tmp_path / "in"


def run(stub: ModuleType, folder: Path, out: Path, task: str, shard: Shard | None = None, **changes: Any) -> Summary:
    options = replace(stub.stub_options(FORMATS[task], task=task), shard=shard, patches=task == "embed", **changes)
    return run_job(stub.StubModel(task), expand([str(folder)]), out, options, lambda done, failed: None)


def contents(root: Path) -> dict[str, bytes]:
    left_out = (".lock", "job.json")
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in left_out
    }


@pytest.mark.parametrize("task", ["detect", "segment", "embed", "classify"])
def test_merged_shards_are_what_one_run_leaves(stub: ModuleType, tmp_path: Path, folder: Path, task: str) -> None:
    """Byte for byte: rows in the order of the whole job, ledger, and every format."""
    whole, merged = tmp_path / "whole", tmp_path / "merged"
    run(stub, folder, whole, task)
    roots = [tmp_path / f"part{number}" for number in range(3)]
    summaries = [run(stub, folder, root, task, Shard(number + 1, 3)) for number, root in enumerate(roots)]
    assert [summary.complete for summary in summaries] == [True] * 3
    assert all(0 < summary.num_results < 36 for summary in summaries)
    random.shuffle(roots)
    summary = merge_jobs(read_shards(roots), merged, lambda done, failed: None)
    assert (summary.num_results, summary.num_failed, summary.complete) == (36, 4, True)
    assert contents(merged).keys() == contents(whole).keys()
    assert {name for name, data in contents(merged).items() if data != contents(whole)[name]} == set()
    again = run(stub, folder, merged, task)
    assert (again.num_new, again.num_results, again.complete) == (0, 36, True), "the merged folder is that job"


def test_names_that_are_no_utf8_are_merged_too(stub: ModuleType, tmp_path: Path, save_picture: SavePicture) -> None:
    """A row holds the escaped name, the disk the bytes; a name that looks escaped is another picture."""
    for seed, name in enumerate((b"caf\xe9.png", b"caf\\xe9-2.png", b"\xff\xfe.png", b"plain.png")):
        save_picture(tmp_path / "x.png", seed=seed).rename(tmp_path / os.fsdecode(name))
    (tmp_path / "in").mkdir()
    for path in tmp_path.glob("*.png"):
        path.rename(tmp_path / "in" / path.name)
    roots = [tmp_path / "a", tmp_path / "b"]
    for number, root in enumerate(roots):
        run(stub, tmp_path / "in", root, "embed", Shard(number + 1, 2), formats=("npz", "html"))
    run(stub, tmp_path / "in", tmp_path / "whole", "embed", formats=("npz", "html"))
    merge_jobs(read_shards(roots), tmp_path / "merged", lambda done, failed: None)
    timed = ("profile.json", "report.html")
    merged, whole = contents(tmp_path / "merged"), contents(tmp_path / "whole")
    assert {name: data for name, data in merged.items() if name not in timed} == {
        name: data for name, data in whole.items() if name not in timed
    }
    assert b"not shown" not in merged["report.html"]


def test_ids_of_a_given_file_survive_the_merge(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    names = [item.file_name for item in expand([str(folder)]).items]
    truth = tmp_path / "truth.json"
    truth.write_text(
        json.dumps({"images": [{"id": 1000 + place, "file_name": name} for place, name in enumerate(names)]})
    )
    roots = [tmp_path / "a", tmp_path / "b"]
    for number, root in enumerate(roots):
        run(stub, folder, root, "detect", Shard(number + 1, 2), formats=("coco",), coco_images=truth)
    merge_jobs(read_shards(roots), tmp_path / "merged", lambda done, failed: None)
    images = json.loads((tmp_path / "merged/coco.json").read_text())["images"]
    assert len(images) == 36
    assert all(names[image["id"] - 1000] == image["file_name"] for image in images)


def test_a_shard_keeps_the_ids_of_the_whole_job(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    run(stub, folder, tmp_path / "a", "detect", Shard(1, 2))
    run(stub, folder, tmp_path / "b", "detect", Shard(2, 2))
    ids = [
        {image["id"] for image in json.loads((tmp_path / name / "coco.json").read_text())["images"]} for name in "ab"
    ]
    assert ids[0] & ids[1] == set()
    assert len(ids[0] | ids[1]) == 36


def test_an_interrupted_merge_goes_on(
    stub: ModuleType, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [tmp_path / f"part{number}" for number in range(2)]
    for number, root in enumerate(roots):
        run(stub, folder, root, "embed", Shard(number + 1, 2))
    merge_jobs(read_shards(roots), tmp_path / "whole", lambda done, failed: None)
    add_result = Job.add_result

    def interrupted(job: Job, row: Row) -> None:
        if row["index"] == 20:
            raise KeyboardInterrupt
        add_result(job, row)

    monkeypatch.setattr(Job, "add_result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        merge_jobs(read_shards(roots), tmp_path / "cut", lambda done, failed: None)
    monkeypatch.undo()
    assert not (tmp_path / "cut/embeddings.parquet").exists()
    (tmp_path / "cut/npz/part0/02.npz").unlink()
    merge_jobs(read_shards(roots), tmp_path / "cut", lambda done, failed: None)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_shard_is_not_overwritten_by_the_merge(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for number, root in enumerate(roots, start=1):
        run(stub, folder, root, "classify", Shard(number, 2))
    before = contents(roots[0])
    with pytest.raises(UsageError, match="is an input"):
        merge_jobs(read_shards(roots), roots[0], lambda done, failed: None, overwrite=True)
    assert contents(roots[0]) == before


def test_shards_that_do_not_fit_are_refused(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    a, b, other, whole = (tmp_path / name for name in ("a", "b", "other", "whole"))
    run(stub, folder, a, "classify", Shard(1, 2))
    run(stub, folder, b, "classify", Shard(2, 2))
    with pytest.raises(UsageError, match=r"Shards 1/2 to 2/2 are needed, each once; given: 1/2"):
        read_shards([a])
    with pytest.raises(UsageError, match=r"given: 1/2, 1/2"):
        read_shards([a, a])
    post = replace(stub.stub_options(task="classify").post, top_k=1)
    run(stub, folder, other, "classify", Shard(2, 2), post=post)
    with pytest.raises(UsageError, match=r"not shards of one job \(post\.top_k: 5 → 1\)"):
        read_shards([a, other])
    run(stub, folder, whole, "classify")
    with pytest.raises(UsageError, match="holds a whole job, not a shard"):
        read_shards([a, whole])
    with pytest.raises(UsageError, match=r"not the folder of a vtk job: it has no job\.json"):
        read_shards([tmp_path])
    with pytest.raises(UsageError, match="not the folder of a vtk job: there is no such folder"):
        read_shards([tmp_path / "nowhere"])
    lines = (b / "results.jsonl").read_bytes().splitlines(keepends=True)
    (b / "results.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    with pytest.raises(UsageError, match=rf"Shard 2/2 in {b} has \d+ of its \d+ pictures"):
        read_shards([a, b])


def test_a_shard_without_its_table_is_not_finished(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    """Killed after the last row and before the file that is made at the end."""
    run(stub, folder, tmp_path / "a", "embed", Shard(1, 1))
    (tmp_path / "a/embeddings.parquet").unlink()
    with pytest.raises(UsageError, match="Shard 1/1"):
        read_shards([tmp_path / "a"])


def test_a_shard_of_other_pictures_is_refused(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    run(stub, folder, tmp_path / "a", "classify", Shard(1, 2))
    (folder / "part1/33.jpg").unlink(missing_ok=True)
    (folder / "part1/33.png").unlink(missing_ok=True)
    run(stub, folder, tmp_path / "b", "classify", Shard(2, 2))
    with pytest.raises(UsageError, match=r"inputs\.pictures"):
        read_shards([tmp_path / "a", tmp_path / "b"])


def test_an_empty_shard_is_a_shard(stub: ModuleType, tmp_path: Path, save_picture: SavePicture) -> None:
    save_picture(tmp_path / "in/a.jpg")
    roots = [tmp_path / f"part{number}" for number in range(3)]
    for number, root in enumerate(roots):
        assert run(stub, tmp_path / "in", root, "detect", Shard(number + 1, 3)).complete
    assert merge_jobs(read_shards(roots), tmp_path / "merged", lambda done, failed: None).num_results == 1
    run(stub, tmp_path / "in", tmp_path / "whole", "detect")
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")


def test_a_shard_does_not_go_on_as_another(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    run(stub, folder, tmp_path / "a", "detect", Shard(1, 2))
    with pytest.raises(UsageError, match=r"shard\.number: 1 → 2"):
        run(stub, folder, tmp_path / "a", "detect", Shard(2, 2))


def test_a_killed_shard_goes_on(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    """Rows of a shard have gaps between their indexes; the prefix is found all the same."""
    run(stub, folder, tmp_path / "whole", "detect", Shard(2, 3))
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    lines = (tmp_path / "whole/results.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut/results.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:9])
    summary = run(stub, folder, tmp_path / "cut", "detect", Shard(2, 3))
    assert summary.num_new >= len(lines) - 4
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_merge_on_the_command_line(
    stub: ModuleType, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, merged = (str(tmp_path / name) for name in ("a", "b", "merged"))
    run(stub, folder, Path(a), "detect", Shard(1, 2))
    run(stub, folder, Path(b), "detect", Shard(2, 2))
    assert main(["merge", a, b, "-o", merged]) == 1, "four pictures had failed"
    printed = capsys.readouterr().out
    assert "36 results, 4 failed" in printed
    assert f"{merged}/coco_results.json" in printed
    assert main(["merge", a, b, "-o", merged, "--keep-going"]) == 0
    assert main(["merge", a, "-o", merged]) == 2
    assert "Shards 1/2 to 2/2 are needed" in capsys.readouterr().err
