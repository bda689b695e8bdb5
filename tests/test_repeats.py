"""`--dedupe`: equal bytes are computed once, every picture has its row, and nothing depends on threads or kills."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from vtk.cli.main import main
from vtk.errors import UsageError
from vtk.inputs import expand
from vtk.run import Summary, run_job

SavePicture = Callable[..., Path]
FORMATS = {
    "detect": ("jsonl", "coco", "yolo", "csv", "crops", "annotated"),
    "segment": ("jsonl", "coco", "yolo", "masks", "annotated"),
    "embed": ("parquet", "npz"),
    "classify": ("jsonl",),
}


@pytest.fixture
def folder(tmp_path: Path, save_picture: SavePicture) -> Path:
    """30 pictures of 7 kinds, in no order, with another name each; and two equal broken ones."""
    for seed in range(7):
        save_picture(tmp_path / f"kinds/{seed}.jpg", seed=seed)
    (tmp_path / "in").mkdir()
    for index, seed in enumerate(np.random.default_rng(3).integers(0, 7, 30)):
        shutil.copy(tmp_path / f"kinds/{seed}.jpg", tmp_path / f"in/{index:02}.jpg")
    for index in (5, 20):
        (tmp_path / f"in/{index:02}x.jpg").write_bytes(b"broken")
    return tmp_path / "in"


def run(
    stub: ModuleType, folder: Path, out: Path, task: str = "detect", model: Any = None, **changes: Any
) -> tuple[Summary, Any]:
    options = replace(stub.stub_options(FORMATS[task], task=task), dedupe=True, patches=task == "embed")
    model = model or stub.StubModel(task)
    plan = expand([str(folder)])
    summary = run_job(model, plan, out, replace(options, **changes), lambda done, failed: None)
    return summary, model


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and path.name not in (".lock", "job.json"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("task", ["detect", "segment", "embed", "classify"])
def test_equal_pictures_are_computed_once_and_told(stub: ModuleType, tmp_path: Path, folder: Path, task: str) -> None:
    """The same as without, but for the statement in the row, and seven pictures through the engine instead of 30."""
    summary, model = run(stub, folder, tmp_path / "once", task)
    assert (summary.num_results, summary.num_failed, summary.complete) == (30, 2, True)
    kinds = len({row["sha256"] for row in rows(tmp_path / "once/results.jsonl")})
    assert sum(model.calls) == kinds <= 7
    run(stub, folder, tmp_path / "each", task, dedupe=False)
    once, each = (rows(tmp_path / name / "results.jsonl") for name in ("once", "each"))
    first: dict[str, int] = {}
    for row, other in zip(once, each, strict=True):
        expected = first.setdefault(row["sha256"], row["index"])
        assert row.pop("duplicate_of", row["index"]) == expected
        assert row == other
    others = contents(tmp_path / "each")
    made = contents(tmp_path / "once")
    assert made.keys() == others.keys()
    assert [name for name in made if made[name] != others[name] and name != "results.jsonl"] == []


def test_threads_do_not_decide_which_one_is_first(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    run(stub, folder, tmp_path / "one", workers=1)
    for attempt in range(5):
        run(stub, folder, tmp_path / f"many{attempt}", workers=8)
        assert contents(tmp_path / f"many{attempt}") == contents(tmp_path / "one")


@pytest.mark.parametrize("task", ["detect", "embed"])
@pytest.mark.parametrize("kept", [1, 11, 29])
def test_a_resumed_job_knows_what_it_has_computed(
    stub: ModuleType, tmp_path: Path, folder: Path, task: str, kept: int
) -> None:
    run(stub, folder, tmp_path / "whole", task)

    class Interrupted(stub.StubModel):  # type: ignore[misc, name-defined]
        pass

    done = [0]

    def stop(count: int, failed: int) -> None:
        done[0] = count
        if count >= kept:
            raise KeyboardInterrupt

    options = replace(stub.stub_options(FORMATS[task], task=task), dedupe=True, patches=task == "embed", batch=1)
    with pytest.raises(KeyboardInterrupt):
        run_job(Interrupted(task), expand([str(folder)]), tmp_path / "cut", options, stop)
    computed = {row["sha256"] for row in rows(tmp_path / "cut/results.jsonl")}
    rest = {row["sha256"] for row in rows(tmp_path / "whole/results.jsonl")} - computed
    _, model = run(stub, folder, tmp_path / "cut", task, batch=1)
    assert sum(model.calls) == len(rest)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_failure_is_shared_too(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    class Failing(stub.StubModel):  # type: ignore[misc, name-defined]
        def finish(self, row: Any, geometry: Any, **options: Any) -> Any:
            raise ZeroDivisionError("division by zero")

    summary, model = run(stub, folder, tmp_path / "out", model=Failing())
    assert (summary.num_results, dict(summary.failures)) == (0, {"internal": 30, "not_an_image": 2})
    assert sum(model.calls) <= 7
    ledger = rows(tmp_path / "out/ledger.jsonl")
    assert [row["index"] for row in ledger] == list(range(32))
    assert len({row["file_name"] for row in ledger}) == 32


def test_embeddings_of_equal_pictures_are_equal(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    run(stub, folder, tmp_path / "out", "embed", formats=("parquet",))
    table = pq.read_table(tmp_path / "out/embeddings.parquet").to_pylist()
    by_bytes: dict[str, list[float]] = {}
    for line in table:
        assert by_bytes.setdefault(line["sha256"], line["pooled"]) == line["pooled"]
    assert len({tuple(vector) for vector in by_bytes.values()}) == len(by_bytes) > 1


def test_a_job_does_not_change_its_mind(stub: ModuleType, tmp_path: Path, folder: Path) -> None:
    run(stub, folder, tmp_path / "out")
    with pytest.raises(UsageError, match="dedupe: true → false"):
        run(stub, folder, tmp_path / "out", dedupe=False)


def test_the_option_reaches_the_job(
    stub: ModuleType, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    model = stub.StubModel()
    monkeypatch.setattr("vtk.bundle.read_bundle", lambda path: model.bundle)
    monkeypatch.setattr("vtk.predictor.open_predictor", lambda bundle, **options: nullcontext(model))
    assert main(["run", "bundle", str(folder), "-o", str(tmp_path / "out"), "--dedupe", "--keep-going"]) == 0
    assert sum("duplicate_of" in row for row in rows(tmp_path / "out/results.jsonl")) >= 23
