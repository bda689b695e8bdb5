"""Suppression decision for decision as the one on the CPU."""

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from triton.runtime.errors import InterpreterError

from vtk.kernels.nms import cuda, reference
from vtk.postprocess.nms import batched_nms

pytestmark = pytest.mark.usefixtures("interpreted")

Scene = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_scene(batch: int, num_boxes: int) -> Scene:
    """Boxes around a few centers, many scores equal, some places empty."""
    center = torch.randint(0, 3, (batch, num_boxes, 1)) * 20.0 + torch.rand(batch, num_boxes, 2) * 6
    half = torch.rand(batch, num_boxes, 2) * 12
    scores = torch.randint(1, 20, (batch, num_boxes)) / 20
    scores[torch.rand(batch, num_boxes) < 0.1] = -torch.inf
    return torch.cat([center - half, center + half], 2), scores, torch.randint(0, 3, (batch, num_boxes))


def expected(scene: Scene, iou_threshold: float, max_detections: int) -> list[list[int]]:
    kept = []
    for boxes, scores, class_ids in zip(*scene, strict=True):
        found = (scores > -torch.inf).nonzero()[:, 0]
        chosen = batched_nms(
            boxes[found].float().numpy(),
            scores[found].numpy(),
            class_ids[found].numpy(),
            iou_threshold=iou_threshold,
            max_detections=max_detections,
        )
        kept.append(found[torch.from_numpy(chosen)].tolist())
    return kept


def check(module: ModuleType, scene: Scene, iou_threshold: float = 0.45, max_detections: int = 300) -> None:
    kept, counts = module.nms(*scene, iou_threshold, max_detections)
    assert kept.shape == (len(scene[0]), max_detections)
    for row, count, wanted in zip(
        kept.tolist(), counts.tolist(), expected(scene, iou_threshold, max_detections), strict=True
    ):
        assert row == wanted + [-1] * (max_detections - len(wanted))
        assert count == len(wanted)


@pytest.mark.parametrize("module", [cuda, reference])
@pytest.mark.parametrize(("iou_threshold", "max_detections"), [(0.45, 50), (0.7, 4), (0.0, 50), (1.0, 30)])
def test_random_scenes(module: ModuleType, iou_threshold: float, max_detections: int) -> None:
    check(module, random_scene(2, 40), iou_threshold, max_detections)


def test_boxes_in_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "BLOCK", 16)
    check(cuda, random_scene(2, 50), 0.5, 21)


def test_transposed_boxes_in_half_precision() -> None:
    """As a YOLO head gives them: (B, 4, N)."""
    boxes, scores, class_ids = random_scene(2, 30)
    transposed = boxes.half().transpose(1, 2).contiguous().transpose(1, 2)
    check(cuda, (transposed, scores, class_ids.int()), 0.45, 10)


@pytest.mark.parametrize("module", [cuda, reference])
@pytest.mark.parametrize(("iou_threshold", "count"), [(0.1, 1), (np.nextafter(np.float32(0.1), np.float32(1)), 2)])
def test_the_threshold_is_not_rounded(module: ModuleType, iou_threshold: float, count: int) -> None:
    """The overlap is float32(0.1), which is above 0.1."""
    boxes = torch.tensor([[[0.0, 0, 11, 5], [9, 0, 20, 5]]])
    scores, class_ids = torch.tensor([[0.9, 0.8]]), torch.zeros(1, 2, dtype=torch.int64)
    assert module.nms(boxes, scores, class_ids, float(iou_threshold), 5)[1].tolist() == [count]


@pytest.mark.parametrize("module", [cuda, reference])
def test_an_overlap_equal_to_the_threshold_and_empty_boxes_stay(module: ModuleType) -> None:
    boxes = torch.tensor([[[0.0, 0, 2, 2], [0, 0, 2, 1], [5, 5, 5, 5], [5, 5, 5, 5]]])
    scores, class_ids = torch.tensor([[0.9, 0.8, 0.7, 0.6]]), torch.zeros(1, 4, dtype=torch.int64)
    assert module.nms(boxes, scores, class_ids, 0.5, 4)[0].tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("module", [cuda, reference])
@pytest.mark.parametrize(("batch", "num_boxes"), [(2, 0), (0, 5), (3, 1)])
def test_no_boxes(module: ModuleType, batch: int, num_boxes: int) -> None:
    boxes, scores, class_ids = random_scene(batch, num_boxes)
    kept, counts = module.nms(boxes, torch.full_like(scores, -torch.inf), class_ids, 0.5, 3)
    assert kept.tolist() == [[-1, -1, -1]] * batch
    assert counts.tolist() == [0] * batch


def test_shapes_that_do_not_fit_are_refused() -> None:
    boxes, scores, class_ids = random_scene(2, 5)
    with pytest.raises(ValueError, match="boxes \\(B, N, 4\\)"):
        cuda.nms(boxes, scores[:, :4], class_ids, 0.5, 3)


IN_A_PASS = "\n            best = tl.where(top > highest, start + at, best)"
MUTATIONS = {
    "not strictly above": ("> limit", ">= limit"),
    "classes meet": ("(rival & (", "(("),
    "tile forgotten": (IN_A_PASS, IN_A_PASS.replace("start + at", "at")),
    "kept box stays": (" | (place == chosen)", ""),
    "a later one of equal scores": (IN_A_PASS, IN_A_PASS.replace(">", ">=")),
    "overlap counted twice": ("+ _area(x1, y1, x2, y2) - overlap", "+ _area(x1, y1, x2, y2)"),
    "overlap of one side": ("overlap = width * height", "overlap = width * width"),
    "picture forgotten": ("class_ids += picture * classes_picture", "class_ids += 0"),
    "no limit": ("(count < max_detections) & ", ""),
    "rest not filled": ("tl.full([BLOCK], -1, tl.int64)", "tl.full([BLOCK], 0, tl.int64)"),
    "mask of the tile dropped": ('mask=place < num_boxes, other=-float("inf")', ""),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(mutated: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = mutated("vtk.kernels.nms.cuda", *MUTATIONS[name])
    monkeypatch.setattr(module, "BLOCK", 16)
    with pytest.raises((AssertionError, InterpreterError, ValueError)):
        check_all(module)


def check_all(module: ModuleType) -> None:
    torch.manual_seed(5)
    check(module, random_scene(2, 40), 0.45, 45)
    check(module, random_scene(2, 40), 0.9, 6)
    test_an_overlap_equal_to_the_threshold_and_empty_boxes_stay(module)
