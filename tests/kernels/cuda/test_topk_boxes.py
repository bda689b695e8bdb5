"""The pairs, order and boxes of the post-processor on the CPU."""

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from triton.runtime.errors import InterpreterError

from vtk.kernels.topk_boxes import cuda, reference
from vtk.postprocess.detr import detr_detections
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.geometry import Geometry, geometry_for
from vtk.preprocess.recipe import Recipe

pytestmark = pytest.mark.usefixtures("interpreted")

GEOMETRIES = (
    geometry_for(Recipe((64, 96)), (333, 500)),
    geometry_for(Recipe((64, 96), "letterbox"), (500, 333)),
)


def spread(*shape: int) -> torch.Tensor:
    """Logits in -6..6 that are all different, so that no rounding of a score swaps two."""
    size = torch.Size(shape).numel()
    return torch.linspace(-6, 6, size)[torch.randperm(size)].view(shape)


def as_tensor(geometries: tuple[Geometry, ...]) -> torch.Tensor:
    rows = [[g.input_hw[::-1], g.offset_xy, g.scale_xy] for g in geometries]
    return torch.tensor(rows, dtype=torch.float64)


def check(
    module: ModuleType,
    logits: torch.Tensor,
    boxes: torch.Tensor,
    max_detections: int,
    threshold: float = 0.0,
    classes: frozenset[int] | None = None,
) -> None:
    mask = None
    if classes is not None:
        mask = torch.tensor([label in classes for label in range(logits.shape[2])])
    found = module.topk_boxes(logits, boxes, as_tensor(GEOMETRIES), max_detections, threshold, mask)
    recipe = PostRecipe("detr", score_threshold=threshold, max_detections=max_detections)
    for row, geometry in enumerate(GEOMETRIES):
        outputs = {"logits": logits[row].float().numpy(), "boxes": boxes[row].float().numpy()}
        wanted = detr_detections(outputs, geometry, recipe, classes)
        count = len(wanted.scores)
        assert found.counts[row] == count
        assert found.labels[row].tolist() == wanted.class_ids.tolist() + [-1] * (max_detections - count)
        np.testing.assert_allclose(found.scores[row, :count], wanted.scores, rtol=1e-6)
        np.testing.assert_array_equal(found.xyxy[row, :count], wanted.xyxy)
        assert not found.scores[row, count:].any()
        assert not found.xyxy[row, count:].any()


@pytest.mark.parametrize("module", [cuda, reference])
@pytest.mark.parametrize(
    ("max_detections", "threshold", "classes"),
    [(30, 0.0, None), (30, 0.9, None), (7, 0.3, frozenset({0, 4})), (250, 0.0, None), (1, 0.5, None), (5, 0.999, None)],
)
def test_pairs_and_boxes(
    module: ModuleType, max_detections: int, threshold: float, classes: frozenset[int] | None
) -> None:
    check(module, spread(2, 23, 9), torch.rand(2, 23, 4), max_detections, threshold, classes)


def test_pairs_in_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "BLOCK", 64)
    check(cuda, spread(2, 23, 9), torch.rand(2, 23, 4), 40)


@pytest.mark.parametrize("module", [cuda, reference])
def test_equal_scores_keep_the_order_of_the_pairs(module: ModuleType) -> None:
    """The last two logits differ, but their scores are both 1."""
    logits = torch.tensor([-1.0, 0.0, 2.0, 20.0, 25.0])[torch.randint(0, 5, (2, 20, 4))]
    check(module, logits, torch.rand(2, 20, 4), 33)


def test_half_precision_with_strides() -> None:
    logits = spread(2, 20, 8).half()
    boxes = torch.full((2, 20, 6), torch.nan, dtype=torch.float16)
    boxes[..., :4] = torch.rand(2, 20, 4)
    check(cuda, logits, boxes[..., :4], 10)


@pytest.mark.parametrize("module", [cuda, reference])
def test_no_pairs(module: ModuleType) -> None:
    check(module, torch.zeros(2, 0, 5), torch.zeros(2, 0, 4), 3)
    found = module.topk_boxes(torch.zeros(0, 7, 5), torch.zeros(0, 7, 4), torch.zeros(0, 3, 2, dtype=torch.float64), 3)
    assert found.xyxy.shape == (0, 3, 4)


def test_what_does_not_fit_is_refused() -> None:
    logits, boxes, geometry = spread(2, 5, 3), torch.rand(2, 5, 4), as_tensor(GEOMETRIES)
    with pytest.raises(ValueError, match="1 to 1024 detections, not 1025"):
        cuda.topk_boxes(logits, boxes, geometry, 1025)
    with pytest.raises(ValueError, match=r"geometry \(B, 3, 2\) float64"):
        cuda.topk_boxes(logits, boxes, geometry.float(), 3)
    with pytest.raises(ValueError, match="3 classes"):
        cuda.topk_boxes(logits, boxes, geometry, 3, 0.0, torch.ones(4, dtype=torch.bool))


MUTATIONS = {
    "not strictly above": ("(score > threshold)", "(score >= threshold)"),
    "filter forgotten": ("    if FILTER:", "    if False:"),
    "mask of the tile dropped": ("(pair < pairs) & (score", "(score"),
    "bisection off by one": ("bits >= middle", "bits > middle"),
    "one at the threshold too few": ("rank <= count - above", "rank < count - above"),
    "equal ones of a tile forgotten": ("num_equal += tl.sum(equal, 0)", "num_equal += 0"),
    "slots of a tile forgotten": ("num_taken += tl.sum(taken, 0)", "num_taken += 0"),
    "order of the pairs": ("rival_key[None, :] < key[:, None]", "rival_key[None, :] > key[:, None]"),
    "offset forgotten": ("first = ((center - half) * size - offset)", "first = ((center - half) * size)"),
    "wrong scale": ("second = ((center + half) * size - offset) / scale", "second = (center + half) * size - offset"),
    "half forgotten": ("tl.float64) / 2", "tl.float64)"),
    "picture forgotten": ("geometry + picture * 6 + 2 + axis", "geometry + 2 + axis"),
    "query of the label": ("(pair // num_classes) * boxes_query", "(pair % num_classes) * boxes_query"),
    "mask of the rows dropped": ("-1).to(tl.int64), mask=inside", "-1).to(tl.int64)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(mutated: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = mutated("vtk.kernels.topk_boxes.cuda", *MUTATIONS[name])
    monkeypatch.setattr(module, "BLOCK", 32)
    with pytest.raises((AssertionError, InterpreterError)):
        check_all(module)


def check_all(module: ModuleType) -> None:
    torch.manual_seed(2)
    logits, boxes = torch.randint(-3, 4, (2, 11, 7)) / 2, torch.rand(2, 11, 4)
    check(module, logits, boxes, 20, 0.5, frozenset({0, 2, 3}))
    check(module, logits, boxes, 40)
    check(module, logits, boxes, 100)
