"""`vtk run` as a user meets it: what it prints, refuses, and returns."""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vtk.bundle import Label
from vtk.cli.main import main
from vtk.cli.run_options import parse_classes
from vtk.errors import UsageError
from vtk.inputs import expand
from vtk.preprocess.decode import decode
from vtk.run import run_job

SavePicture = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, save_picture: SavePicture) -> Path:
    """Case V54: three pictures, a cut one, an empty one and a web page."""
    for index in range(3):
        save_picture(tmp_path / f"in/{index}.jpg", seed=index, size_wh=(80, 60))
    data = (tmp_path / "in/0.jpg").read_bytes()
    (tmp_path / "in/cut.jpg").write_bytes(data[: len(data) // 2])
    (tmp_path / "in/empty.jpg").write_bytes(b"")
    (tmp_path / "in/page.jpg").write_bytes(b"<html>not found</html>")
    return tmp_path / "in"


@pytest.fixture
def open_stub(stub: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Puts the stub in the place of every bundle."""

    def open_as(task: str = "detect") -> Any:
        model = stub.StubModel(task)
        monkeypatch.setattr("vtk.bundle.read_bundle", lambda path: model.bundle)
        monkeypatch.setattr("vtk.predictor.open_predictor", lambda bundle, **options: nullcontext(model))
        return model

    return open_as


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_bad_files_cost_the_exit_code_and_nothing_else(
    open_stub: Callable[..., Any], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case V54."""
    open_stub()
    out = tmp_path / "out"
    assert main(["run", "bundle", str(folder), "-o", str(out)]) == 1
    assert len(rows(out / "results.jsonl")) == 3
    assert {row["file_name"]: row["reason"] for row in rows(out / "ledger.jsonl")} == {
        "cut.jpg": "truncated",
        "empty.jpg": "empty",
        "page.jpg": "not_an_image",
    }
    printed = capsys.readouterr()
    assert "3 results, 3 failed (empty 1, not_an_image 1, truncated 1)" in printed.out
    assert str(out / "results.jsonl") in printed.out
    assert str(out / "ledger.jsonl") in printed.out
    assert "6 pictures; stub on cpu, batch 4" in printed.err
    assert main(["run", "bundle", str(folder), "-o", str(out)]) == 1, "still failed when nothing is left to do"
    assert main(["run", "bundle", str(folder), "-o", str(out), "--keep-going"]) == 0


def test_all_good_is_zero(open_stub: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    open_stub()
    files = [str(folder / f"{index}.jpg") for index in range(3)]
    assert main(["run", "bundle", *files, "-o", str(tmp_path / "out")]) == 0


def test_a_leading_dash_after_the_separator(
    open_stub: Callable[..., Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case V45."""
    open_stub()
    (folder / "0.jpg").rename(folder / "-0.jpg")
    monkeypatch.chdir(folder)
    assert main(["run", "-o", str(tmp_path / "out"), "bundle", "--", "-0.jpg"]) == 0
    assert rows(tmp_path / "out/results.jsonl")[0]["path"] == "-0.jpg"


def test_allow_truncated_and_thresholds_reach_the_results(
    open_stub: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    open_stub()
    run = ["run", "bundle", str(folder / "cut.jpg"), str(folder / "0.jpg")]
    assert main([*run, "-o", str(tmp_path / "a"), "--allow-truncated"]) == 0
    assert [len(row["detections"]) for row in rows(tmp_path / "a/results.jsonl")] == [1, 1]
    assert main([*run, "-o", str(tmp_path / "b"), "--allow-truncated", "--score", "1"]) == 0
    assert [row["detections"] for row in rows(tmp_path / "b/results.jsonl")] == [[], []]
    assert main([*run, "-o", str(tmp_path / "c"), "--allow-truncated", "--classes", "CAT,2"]) == 0
    assert [row["detections"] for row in rows(tmp_path / "c/results.jsonl")] == [[], []]


def test_max_errors_stops_with_one_even_when_kept_going(
    open_stub: Callable[..., Any], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_stub()
    run = ["run", "bundle", str(folder), "-o", str(tmp_path / "out"), "--keep-going"]
    assert main([*run, "--max-errors", "1"]) == 1
    assert "Stopped by --max-errors" in capsys.readouterr().out
    assert main([*run, "--max-errors", "3"]) == 0


def test_all_detection_formats(open_stub: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    open_stub()
    out = tmp_path / "out"
    assert main(["run", "b", str(folder), "-o", str(out), "--format", "jsonl,coco,yolo,annotated"]) == 1
    assert len(list(out.glob("yolo/labels/*.txt"))) == len(list(out.glob("annotated/*.jpg"))) == 3
    assert len(json.loads((out / "coco_results.json").read_text())) == 3


def test_formats_may_be_spaced(open_stub: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    open_stub()
    images = [{"file_name": path.name, "id": 100 + index} for index, path in enumerate(sorted(folder.iterdir()))]
    (tmp_path / "images.json").write_text(json.dumps({"images": images}))
    command = ["run", "b", str(folder), "-o", str(tmp_path / "out"), "--format", "jsonl, coco"]
    assert main([*command, "--coco-images", str(tmp_path / "images.json")]) == 1
    assert [item["image_id"] for item in json.loads((tmp_path / "out/coco_results.json").read_text())] == [
        100,
        101,
        102,
    ]


@pytest.mark.parametrize("task", ["detect", "segment"])
def test_nothing_found_is_a_result_in_every_format(
    stub: ModuleType, open_stub: Callable[..., Any], tmp_path: Path, save_picture: SavePicture, task: str
) -> None:
    """Case V48: an entry without boxes, an empty list, an empty file, the picture itself, and exit code 0."""
    import pyarrow.parquet as pq

    from vtk.sinks.registry import FORMATS

    out, picture = tmp_path / "out", save_picture(tmp_path / "a.png")
    formats = [name for name in FORMATS[task] if name != "video"]
    if task == "detect":
        open_stub()
        assert main(["run", "b", str(picture), "-o", str(out), "--format", ",".join(formats), "--score", "1"]) == 0
    else:
        asked = stub.stub_options(formats, task=task)
        asked = replace(asked, post=replace(asked.post, score_threshold=1.0))
        assert run_job(stub.StubModel(task), expand([str(picture)]), out, asked, lambda done, failed: None).complete
    assert [row["detections"] for row in rows(out / "results.jsonl")] == [[]]
    assert [image["file_name"] for image in json.loads((out / "coco.json").read_text())["images"]] == ["a.png"]
    assert json.loads((out / "coco.json").read_text())["annotations"] == []
    assert json.loads((out / "coco_results.json").read_text()) == []
    assert (out / "yolo/labels/a.txt").read_bytes() == b""
    assert np.array_equal(decode(out / "annotated/a.png"), decode(picture))
    head, line = (out / "detections.csv").read_text().splitlines()
    assert dict(zip(head.split(","), line.split(","), strict=True))["class_id"] == ""
    assert pq.read_table(out / "detections.parquet")["score"].to_pylist() == [None]
    assert not (out / "crops").exists()
    assert "pictures without any" in (out / "report.html").read_text()
    if task == "segment":
        assert json.loads((out / "coco_results_masks.json").read_text()) == []
        with Image.open(out / "masks/a.png") as masks:
            assert masks.size == (24, 16)
            assert masks.getbbox() is None


def test_embeddings_go_to_parquet_or_npz(open_stub: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    open_stub("embed")
    assert main(["run", "b", str(folder), "-o", str(tmp_path / "p"), "--patches", "--keep-going"]) == 0
    table = pq.read_table(tmp_path / "p/embeddings.parquet")
    assert table["file_name"].to_pylist() == ["0.jpg", "1.jpg", "2.jpg"]
    assert table["grid_hw"].to_pylist() == [[2, 3]] * 3
    assert main(["run", "b", str(folder), "-o", str(tmp_path / "n"), "--format", "npz", "--keep-going"]) == 0
    assert sorted(path.name for path in (tmp_path / "n/npz").iterdir()) == ["0.npz", "1.npz", "2.npz"]


def test_classes_go_to_jsonl(open_stub: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    open_stub("classify")
    assert main(["run", "b", str(folder / "0.jpg"), "-o", str(tmp_path / "out"), "--top-k", "1"]) == 0
    (row,) = rows(tmp_path / "out/results.jsonl")
    assert [(item["class_id"], item["category_id"], item["name"]) for item in row["classes"]] == [(1, 7, "dog")]


@pytest.mark.parametrize(
    ("task", "flags", "message"),
    [
        ("detect", ["--format", "npz"], "does not fit a bundle of task 'detect'"),
        ("detect", ["--format", "xml"], "It takes: jsonl, csv, parquet, html, coco, yolo, crops, annotated, video"),
        ("embed", ["--format", "coco"], "It takes: parquet, npz, html"),
        ("classify", ["--format", "yolo"], "It takes: jsonl, csv, parquet, html"),
        ("embed", ["--score", "0.5"], "--score is for bundles of task 'detect'"),
        ("detect", ["--top-k", "3"], "--top-k is for bundles of task 'classify'"),
        ("detect", ["--patches"], "--patches is for bundles of task 'embed'"),
        ("detect", ["--classes", "cta"], "no class 'cta'"),
        ("detect", ["--classes", "3"], "no class '3'"),
        ("detect", ["--coco-images", "x.json"], "needs --format coco"),
        ("detect", ["--alpha", "blurple"], "no color"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_work(
    open_stub: Callable[..., Any],
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    task: str,
    flags: list[str],
    message: str,
) -> None:
    open_stub(task)
    assert main(["run", "bundle", str(folder), "-o", str(tmp_path / "out"), *flags]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags", [["--score", "2"], ["--score", "x"], ["--batch", "0"], ["--max-errors", "-1"]])
def test_values_out_of_range_are_refused_by_the_parser(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "bundle", "in", "-o", "out", *flags])
    assert caught.value.code == 2
    assert flags[0] in capsys.readouterr().err


def test_nothing_to_run_on_is_an_error(
    open_stub: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_stub()
    assert main(["run", "bundle", str(tmp_path / "nowhere"), "-o", str(tmp_path / "out")]) == 2
    assert "No such file or folder" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "nowhere"), str(tmp_path), "-o", str(tmp_path / "out")]) == 2


def test_an_interrupt_says_how_to_go_on(
    open_stub: Callable[..., Any], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = open_stub()

    def interrupt(tensors: Any) -> Any:
        raise KeyboardInterrupt

    model.infer = interrupt
    assert main(["run", "bundle", str(folder), "-o", str(tmp_path / "out")]) == 130
    assert "Run the same command again" in capsys.readouterr().err


def test_what_was_left_out_is_said(
    open_stub: Callable[..., Any], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_stub()
    (folder / "notes.md").write_text("x")
    (folder / ".hidden.jpg").write_text("x")
    main(["run", "bundle", str(folder), str(folder / "0.jpg"), "-o", str(tmp_path / "out")])
    assert "(left out: 1 other file (1 × .md); 1 hidden name; 1 named twice)" in capsys.readouterr().err


def test_classes_by_name_and_index() -> None:
    labels = (Label(1, "cat"), Label(2, "dog"), Label(3, "hot dog"), Label(4, "Cat"))
    assert parse_classes("cat, hot dog", labels) == {0, 2, 3}
    assert parse_classes("1,2", labels) == {1, 2}
    with pytest.raises(UsageError, match="hot dog"):
        parse_classes("hotdog", labels)


def test_a_missing_package_is_told_before_anything_is_written(
    open_stub: Callable[..., Any],
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_stub("embed")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert main(["run", "bundle", str(folder), "-o", str(tmp_path / "out")]) == 2
    assert "pip install 'vtk-deploy[parquet]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
