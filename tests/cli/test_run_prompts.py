"""`vtk run` with a promptable model: prompts are classes, masks are in every format, and jobs know what they asked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vtk.bundle import read_bundle
from vtk.cli.main import main
from vtk.postprocess.rle import paint, unpack_counts
from vtk.segmenting.clicks import Clicks
from vtk.segmenting.predictor import open_segment_predictor
from vtk.segmenting.prompts import Prompt

Run = Callable[..., int]
BUS, CAT = Prompt("yellow bus"), Prompt("cat")


@pytest.fixture
def pictures(tmp_path: Path, save_picture: Callable[..., Path]) -> Path:
    folder = tmp_path / "pictures"
    for number, size in enumerate(((40, 30), (25, 60), (64, 64))):
        save_picture(folder / f"in/{number}.png", number, size)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def run(prompted_bundle: Path, pictures: Path, out: Path) -> Run:
    def run(*arguments: str | Path) -> int:
        return main(
            ["run", str(prompted_bundle), str(pictures), "-o", str(out), "--backend", "ort", *map(str, arguments)]
        )

    return run


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_prompts_are_the_classes_of_rows_with_masks(run: Run, prompted_bundle: Path, pictures: Path, out: Path) -> None:
    assert run("--prompt", "yellow bus", "--prompt", "cat") == 0
    rows = rows_of(out)
    with open_segment_predictor(read_bundle(prompted_bundle), backend="ort", threads=1) as predictor:
        for row in rows:
            pixels = np.asarray(Image.open(pictures / row["file_name"]).convert("RGB"))
            expected = predictor.segment(predictor.embed(pixels), [BUS, CAT])
            found = row["detections"]
            assert [item["name"] for item in found] == [("yellow bus", "cat")[i] for i in expected.class_ids]
            assert [item["category_id"] for item in found] == (expected.class_ids + 1).tolist()
            np.testing.assert_allclose([item["score"] for item in found], expected.scores, rtol=1e-5)
            np.testing.assert_allclose([item["bbox_xyxy"] for item in found], expected.xyxy, rtol=1e-5)
            assert expected.masks is not None
            for index, item in enumerate(found):
                size = item["segmentation"]["size"]
                assert size == [row["height"], row["width"]]
                mask = paint(unpack_counts(item["segmentation"]["counts"].encode()), tuple(size))
                assert (mask == expected.masks[index]).mean() > 0.999
    assert len(rows) == 3
    assert all(len(row["detections"]) == 4 for row in rows)


def test_every_format_has_the_masks(run: Run, out: Path) -> None:
    assert run("--prompt", "cat", "--format", "coco,yolo,annotated,masks,crops") == 0
    coco = json.loads((out / "coco.json").read_text())
    assert coco["categories"] == [{"id": 1, "name": "cat"}]
    assert all(item["segmentation"]["counts"] for item in coco["annotations"])
    areas = [item["area"] for item in coco["annotations"]]
    assert areas == [
        int(unpack_counts(item["segmentation"]["counts"].encode())[1::2].sum()) for item in coco["annotations"]
    ]
    assert all(item["segmentation"] for item in json.loads((out / "coco_results_masks.json").read_text()))
    assert (out / "yolo/classes.txt").read_text() == "cat\n"
    assert len(list((out / "annotated").rglob("*.png"))) == 3


def test_prompts_are_part_of_the_job(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--prompt", "cat") == 0
    before = (out / "results.jsonl").read_bytes()
    assert run("--prompt", "cat") == 0
    assert (out / "results.jsonl").read_bytes() == before
    assert run("--prompt", "dog") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run("--prompt", "dog", "--overwrite") == 0
    assert {item["name"] for row in rows_of(out) for item in row["detections"]} == {"dog"}


def test_examples_count_in_their_picture(run: Run, prompted: ModuleType, out: Path, tmp_path: Path) -> None:
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"in/1.png": [{"prompt": "cat", "xyxy": [2, 3, 20, 30]}, {"xyxy": [1, 1, 9, 9]}]}))
    assert run("--prompt", "cat", "--boxes", boxes, "--score", "0") == 0
    by_name = {row["file_name"]: row["detections"] for row in rows_of(out)}
    cats = {name: max(i["score"] for i in found if i["name"] == "cat") for name, found in by_name.items()}
    presence = 1 / (1 + np.exp(-prompted.PRESENCE))
    for name, num_boxes in (("in/0.png", 0), ("in/1.png", 1)):
        logit = prompted.BIASES[0] + prompted.shift_of(2368, num_boxes, 0)
        np.testing.assert_allclose(cats[name], presence / (1 + np.exp(-logit)), rtol=1e-5)
    assert {name for name, found in by_name.items() if any(i["name"] == "visual" for i in found)} == {"in/1.png"}
    boxes.write_text(json.dumps({"in/1.png": [{"prompt": "cat", "xyxy": [2, 3, 20, 31]}]}))
    assert run("--prompt", "cat", "--boxes", boxes, "--score", "0") == 2  # another job


def test_a_box_outside_fails_its_picture_only(run: Run, out: Path, tmp_path: Path) -> None:
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"in/1.png": [{"prompt": "cat", "xyxy": [200, 3, 300, 30]}]}))
    assert run("--prompt", "cat", "--boxes", boxes) == 1
    (failed,) = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    assert failed["reason"] == "unusable"
    assert "outside of the picture of 25 x 60" in failed["message"]
    assert len(rows_of(out)) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "asked for nothing"),
        (["--prompt", " "], "empty"),
        (["--prompt", "cat", "--prompt", "cat"], "given twice"),
        (["--prompt", "cat " * 31], "31 tokens"),
        (["--prompt", "cat", "--classes", "cat"], "--classes is for bundles of task 'detect'"),
        (["--prompt", "cat", "--boxes", "nothing.json"], "holds no examples"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    run: Run, out: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (out / "results.jsonl").exists()


def test_examples_in_a_picture_that_is_not_there_are_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"1.png": [{"prompt": "cat", "xyxy": [2, 3, 20, 30]}]}))
    assert run("--prompt", "cat", "--boxes", boxes) == 2
    assert "examples in '1.png'" in " ".join(capsys.readouterr().err.split())


def test_objects_that_a_file_points_at_are_rows_of_their_class(
    pointed_bundle: Path, pictures: Path, out: Path, tmp_path: Path
) -> None:
    points = tmp_path / "points.json"
    items = [{"points": [[5, 5]], "name": "dog"}, {"points": [[20, 30], [1, 1]], "labels": [1, 0], "name": "dog"}]
    points.write_text(json.dumps({"in/1.png": items}))
    command = ["run", str(pointed_bundle), str(pictures), "-o", str(out), "--backend", "ort", "--points", str(points)]
    assert main(command) == 0
    found = {row["file_name"]: row["detections"] for row in rows_of(out)}
    assert [len(found[f"in/{number}.png"]) for number in range(3)] == [0, 2, 0]
    pixels = np.asarray(Image.open(pictures / "in/1.png").convert("RGB"))
    objects = Clicks(((5, 5),), (1,)), Clicks(((20, 30), (1, 1)), (1, 0))
    with open_segment_predictor(read_bundle(pointed_bundle), backend="ort", threads=1) as predictor:
        expected = predictor.segment(predictor.embed(pixels), [Prompt("dog", objects=objects)])
    assert [item["name"] for item in found["in/1.png"]] == ["dog", "dog"]
    np.testing.assert_allclose([item["bbox_xyxy"] for item in found["in/1.png"]], expected.xyxy)
    np.testing.assert_allclose([item["score"] for item in found["in/1.png"]], expected.scores, rtol=1e-5)
    points.write_text(json.dumps({"in/1.png": items[:1]}))
    assert main(command) == 2  # another job


def test_points_for_a_bundle_that_takes_none_are_refused_before_any_work(
    run: Run, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = tmp_path / "points.json"
    points.write_text(json.dumps({"in/1.png": [{"points": [[5, 5]]}]}))
    assert run("--points", points) == 2
    assert "This bundle takes no points" in " ".join(capsys.readouterr().err.split())
    assert not (out / "results.jsonl").exists()
    assert run("--points", points, "--dedupe") == 2
    assert "--dedupe and --points" in capsys.readouterr().err


@pytest.fixture
def live(pointed_bundle: Path, out: Path) -> Run:
    """A run over what comes while it runs."""

    def live(*arguments: str | Path) -> int:
        return main(["run", str(pointed_bundle), *map(str, arguments), "-o", str(out), "--backend", "ort"])

    return live


def test_pictures_that_are_named_and_never_come_into_a_watched_folder_are_told(
    live: Run, pictures: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that came before a restart, and those that came and failed, have come."""
    (pictures / "in/bad.png").write_bytes(b"broken")
    names = ["in/1.png", "in/bad.png", "1.png", "in/\n.png", "x.png", "y.png", "z.png"]
    points = tmp_path / "points.json"
    points.write_text(json.dumps({name: [{"points": [[5, 5]]}] for name in names}))
    told = "5 pictures that --points or --boxes name have not come: '1.png', 'in/\\n.png', 'x.png' and 2 more."
    for _ in range(2):
        command = ["--watch", pictures, "--idle-timeout", "0.1", "--settle", "0.01", "--points", points, "--keep-going"]
        assert live(*command) == 0
        printed = capsys.readouterr().out
        assert told in printed
        assert "Names are those that results.jsonl has as file_name." in printed
    assert {row["file_name"]: len(row["detections"]) for row in rows_of(out)}["in/1.png"] == 1


def test_nothing_is_told_when_every_named_picture_came(
    live: Run, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = tmp_path / "points.json"
    points.write_text(json.dumps({"in/1.png": [{"points": [[5, 5]]}]}))
    command = ["--idle-timeout", "0.1", "--settle", "0.01", "--points", points]
    assert live("--watch", pictures, *command) == 0
    assert "not come" not in capsys.readouterr().out


def test_frames_that_are_named_and_never_come_from_a_camera_are_told(
    live: Run, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    av = pytest.importorskip("av")
    frames = [av.VideoFrame.from_ndarray(np.full((24, 32, 3), 99, np.uint8), format="rgb24") for _ in range(3)]
    monkeypatch.setattr("vtk.filming.camera_frames", lambda options: iter(frames))
    points = tmp_path / "points.json"
    points.write_text(json.dumps({name: [{"points": [[5, 5]]}] for name in ("00000000", "7")}))
    assert live("--camera", "/dev/video0", "--max-frames", "1", "--points", points) == 0
    assert "1 picture that --points or --boxes name has not come: '7'." in capsys.readouterr().out
    assert [len(row["detections"]) for row in rows_of(out)] == [1]


def test_a_shard_says_nothing_of_pictures_in_another(
    live: Run, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = tmp_path / "points.json"
    points.write_text(json.dumps({f"in/{number}.png": [{"points": [[5, 5]]}] for number in range(3)}))
    assert live(pictures, "--points", points, "--shard", "1/3") == 0
    assert "not come" not in capsys.readouterr().out


def test_a_name_that_is_no_text_is_written_as_in_the_results(
    live: Run, pictures: Path, out: Path, tmp_path: Path, save_picture: Callable[..., Path]
) -> None:
    save_picture(tmp_path / "a.png").rename(pictures / os.fsdecode(b"\xe4.png"))
    points = tmp_path / "points.json"
    points.write_text(json.dumps({"\\xe4.png": [{"points": [[5, 5]]}]}))
    assert live(pictures, "--points", points) == 0
    assert {row["file_name"]: len(row["detections"]) for row in rows_of(out)}["\\xe4.png"] == 1
