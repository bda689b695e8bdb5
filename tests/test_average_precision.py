"""COCO's average precision: against pycocotools on random scenes, and by hand."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vtk.average_precision import IOU_THRESHOLDS, Truth, average_precision
from vtk.postprocess.results import Detections

SIZE_WH = (100, 80)


def detections(xyxy: Any, scores: Any, class_ids: Any) -> Detections:
    return Detections(
        xyxy=np.array(xyxy, np.float32).reshape(-1, 4),
        scores=np.array(scores, np.float32),
        class_ids=np.array(class_ids, np.int64),
        resolution_wh=SIZE_WH,
    )


def scene(rng: np.random.Generator) -> tuple[Truth, Detections]:
    """Up to 6 objects of 3 classes, one in five a crowd; detections near them, some twice, some of nothing."""
    count = int(rng.integers(0, 7))
    low = rng.uniform(0, 50, size=(count, 2))
    boxes = np.concatenate([low, low + rng.uniform(5, 40, size=(count, 2))], axis=1)
    classes, crowd = rng.integers(0, 3, size=count), rng.random(count) < 0.2
    near = [boxes + rng.normal(scale=3, size=boxes.shape) for _ in range(2)]
    low = rng.uniform(0, 50, size=(4, 2))
    free = np.concatenate([low, low + rng.uniform(5, 40, size=(4, 2))], axis=1)
    found = np.concatenate([*near, free])
    kinds = np.concatenate([classes, classes, rng.integers(0, 3, size=4)])
    keep = (found[:, 2:] > found[:, :2]).all(axis=1)
    scores = rng.integers(1, 40, size=len(found)) / 40  # with ties
    return Truth(boxes, classes, crowd), detections(found[keep], scores[keep], kinds[keep])


def with_pycocotools(scenes: list[tuple[Truth, Detections]]) -> npt.NDArray[np.float64]:
    """AP per threshold by the reference program."""
    coco_module = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    images, annotations, results = [], [], []
    for number, (truth, found) in enumerate(scenes, 1):
        images.append({"id": number, "width": SIZE_WH[0], "height": SIZE_WH[1]})
        for box, kind, crowd in zip(truth.xyxy, truth.class_ids, truth.is_crowd, strict=True):
            xywh = [*box[:2], *(box[2:] - box[:2])]
            item = {"image_id": number, "category_id": int(kind), "bbox": xywh, "iscrowd": int(crowd)}
            annotations.append({**item, "id": len(annotations) + 1, "area": float(xywh[2] * xywh[3])})
        for box, score, kind in zip(found.xyxy.astype(float), found.scores, found.class_ids, strict=True):
            xywh = [*box[:2], *(box[2:] - box[:2])]
            results.append({"image_id": number, "category_id": int(kind), "bbox": xywh, "score": float(score)})
    with contextlib.redirect_stdout(io.StringIO()):
        truth_set = coco_module.COCO()
        categories = [{"id": index, "name": str(index)} for index in range(3)]
        truth_set.dataset = {"images": images, "annotations": annotations, "categories": categories}
        truth_set.createIndex()
        run = evaluation.COCOeval(truth_set, truth_set.loadRes(results), "bbox")
        run.evaluate()
        run.accumulate()
    precision = run.eval["precision"][:, :, :, 0, 2]  # (thresholds, recalls, classes): all areas, 100 detections
    return np.array([level[level > -1].mean() for level in precision])


@pytest.mark.parametrize("seed", range(5))
def test_equals_pycocotools(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scenes = [scene(rng) for _ in range(12)]
    came = average_precision([truth for truth, _ in scenes], [found for _, found in scenes])
    np.testing.assert_allclose(came, with_pycocotools(scenes), atol=1e-12)


def truth(*boxes: tuple[float, float, float, float]) -> Truth:
    return Truth(np.array(boxes, float).reshape(-1, 4), np.zeros(len(boxes), np.int64), np.zeros(len(boxes), np.bool_))


def test_a_perfect_detector_has_one_and_a_blind_one_zero() -> None:
    box = (10.0, 10.0, 30.0, 40.0)
    assert average_precision([truth(box)], [detections([box], [0.9], [0])]).tolist() == [1] * len(IOU_THRESHOLDS)
    assert average_precision([truth(box)], [detections([], [], [])]).tolist() == [0] * len(IOU_THRESHOLDS)
    assert average_precision([truth(box)], [detections([box], [0.9], [1])]).tolist() == [0] * len(IOU_THRESHOLDS)


def test_a_box_found_at_iou_0_6_counts_up_to_there() -> None:
    found = detections([(0, 0, 10, 6)], [0.9], [0])
    came = average_precision([truth((0, 0, 10, 10))], [found])
    assert came.tolist() == [1, 1, 1, *[0] * 7]


def test_a_wrong_detection_before_the_right_one_halves_precision() -> None:
    found = detections([(50, 50, 60, 60), (0, 0, 10, 10)], [0.9, 0.5], [0, 0])
    assert average_precision([truth((0, 0, 10, 10))], [found]).tolist() == [0.5] * len(IOU_THRESHOLDS)


def test_nothing_to_find_has_no_precision() -> None:
    assert np.isnan(average_precision([truth()], [detections([], [], [])])).all()
