"""Prompted segmentation: the official score rule, boxes and masks in source pixels, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F

from vtk.errors import BackendError, UsageError
from vtk.postprocess.api import num_classes, postprocess
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections
from vtk.postprocess.segment import join_queries, segment_detections, select_queries, to_detections
from vtk.preprocess.geometry import Geometry

Place = Callable[[tuple[int, int], tuple[int, int]], Geometry]
Outputs = dict[str, npt.NDArray[np.generic]]

OFFICIAL = PostRecipe("segment", score_threshold=0.5)
EVERYTHING = PostRecipe("segment", score_threshold=0.0)


@pytest.fixture
def decoded(golden: Path) -> Callable[[str], Outputs]:
    """The official outputs for `text` or `textbox`, without batch dimension."""
    data = np.load(golden / "sam3_small_expected.npz")

    def read(case: str) -> Outputs:
        names = {"masks": "masks", "boxes_xyxy": "boxes", "logits": "logits", "presence": "presence_logits"}
        arrays = {k: data[f"official_{case}_{v if v == 'presence_logits' else 'pred_' + v}"] for k, v in names.items()}
        return {**{k: v[0] for k, v in arrays.items()}, "logits": arrays["logits"].reshape(-1)}

    return read


def by_torch(outputs: Outputs, size_hw: tuple[int, int], threshold: float) -> tuple[torch.Tensor, ...]:
    """Scores, boxes and masks as the official post-processor computes them, by falling score."""
    masks, boxes, logits, presence = (
        torch.from_numpy(np.asarray(outputs[name])) for name in ("masks", "boxes_xyxy", "logits", "presence")
    )
    scores = logits.sigmoid() * presence.sigmoid()
    kept = torch.nonzero(scores > threshold).flatten()
    kept = kept[torch.argsort(scores[kept], descending=True, stable=True)]
    height, width = size_hw
    large = F.interpolate(masks[None], size_hw, mode="bilinear", align_corners=False)[0].sigmoid() > 0.5
    return scores[kept], boxes[kept] * torch.tensor([width, height, width, height]), large[kept]


def iou(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> float:
    union = int((one | other).sum())
    return int((one & other).sum()) / union if union else 1.0


@pytest.mark.parametrize("case", ["text", "textbox"])
@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.35])
def test_it_is_the_official_post_processor(
    decoded: Callable[[str], Outputs], stretched: Place, case: str, threshold: float
) -> None:
    size_hw = (173, 301)
    recipe = PostRecipe("segment", score_threshold=threshold)
    found = postprocess(decoded(case), stretched(size_hw, (224, 224)), recipe)
    scores, boxes, masks = by_torch(decoded(case), size_hw, threshold)
    assert isinstance(found, Detections)
    assert len(found) == len(scores)
    assert threshold > 0 or len(found) == 20
    np.testing.assert_allclose(found.scores, scores, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.xyxy, boxes, rtol=0, atol=1e-4 * max(size_hw))
    assert found.masks is not None
    assert all(iou(found.masks[i], masks[i].numpy()) >= 0.999 for i in range(len(found)))


def test_presence_counts(rng: np.random.Generator, stretched: Place) -> None:
    """Case V28: results that differ came from scores without presence."""
    outputs = random_outputs(rng, queries=6)
    geometry = stretched((40, 50), (32, 32))
    outputs["logits"] = np.full(6, 2.0, np.float32)  # 0.88
    for presence, count in ((4.0, 6), (0.0, 0)):  # 0.98 and 0.5
        outputs["presence"] = np.array([presence], np.float32)
        assert len(postprocess(outputs, geometry, OFFICIAL)) == count


def test_a_score_that_equals_the_threshold_is_not_kept(rng: np.random.Generator, stretched: Place) -> None:
    outputs = {**random_outputs(rng, queries=3), "logits": np.zeros(3, np.float32), "presence": np.float32([100.0])}
    assert len(segment_detections(outputs, stretched((8, 8), (8, 8)), OFFICIAL, None)) == 0


def test_nothing_found_has_the_shape_of_nothing(rng: np.random.Generator, stretched: Place) -> None:
    """Case V48."""
    outputs = random_outputs(rng, queries=5) | {"presence": np.full(1, -20, np.float32)}
    found = segment_detections(outputs, stretched((30, 20), (16, 16)), OFFICIAL, None)
    assert found.xyxy.shape == (0, 4)
    assert found.masks is not None
    assert found.masks.dense().shape == (0, 30, 20)


def test_queries_of_several_prompts_are_sorted_together(rng: np.random.Generator, stretched: Place) -> None:
    geometry = stretched((61, 47), (32, 32))
    prompts = [random_outputs(rng, queries=7) for _ in range(3)]
    joined = join_queries([select_queries(outputs, 0.2, prompt=i) for i, outputs in enumerate(prompts)])
    together = to_detections(joined, geometry, PostRecipe("segment", score_threshold=0.2))
    assert (np.diff(together.scores) <= 0).all()
    for index, outputs in enumerate(prompts):
        alone = segment_detections(outputs, geometry, PostRecipe("segment", score_threshold=0.2), None)
        mine = together.select(together.class_ids == index)
        np.testing.assert_array_equal(mine.xyxy, alone.xyxy)
        np.testing.assert_array_equal(mine.scores, alone.scores)
        assert mine.masks is not None
        assert alone.masks is not None
        assert mine.masks.rle == alone.masks.rle


def test_the_best_are_kept_where_there_are_too_many(rng: np.random.Generator, stretched: Place) -> None:
    outputs, geometry = random_outputs(rng, queries=9), stretched((20, 20), (16, 16))
    every = segment_detections(outputs, geometry, EVERYTHING, None)
    best = segment_detections(outputs, geometry, PostRecipe("segment", score_threshold=0, max_detections=4), None)
    np.testing.assert_array_equal(best.scores, every.scores[:4])
    assert best.masks is not None
    assert len(best.masks) == 4


def test_what_a_prompt_finds_does_not_depend_on_the_others(rng: np.random.Generator, stretched: Place) -> None:
    """The cap is one of each prompt: the crowd that one finds drives out nothing of another."""
    geometry, recipe = stretched((20, 20), (16, 16)), PostRecipe("segment", score_threshold=0, max_detections=5)
    crowd, few = random_outputs(rng, queries=40), random_outputs(rng, queries=2)
    crowd["logits"] = crowd["logits"] + 5
    together = to_detections(
        join_queries([select_queries(item, 0.0, prompt=i) for i, item in enumerate((crowd, few))]), geometry, recipe
    )
    assert np.bincount(together.class_ids).tolist() == [5, 2]
    alone = segment_detections(few, geometry, recipe, None)
    np.testing.assert_array_equal(together.select(together.class_ids == 1).scores, alone.scores)


@pytest.mark.parametrize("name", ["masks", "boxes_xyxy", "logits", "presence"])
def test_a_number_that_is_none_is_an_error(rng: np.random.Generator, stretched: Place, name: str) -> None:
    outputs = random_outputs(rng, queries=4)
    outputs[name].reshape(-1)[-1] = np.nan
    with pytest.raises(BackendError, match=name):
        segment_detections(outputs, stretched((8, 8), (8, 8)), OFFICIAL, None)


def test_outputs_of_different_queries_are_an_error(rng: np.random.Generator, stretched: Place) -> None:
    outputs = random_outputs(rng, queries=4) | {"boxes_xyxy": np.zeros((5, 4), np.float32)}
    with pytest.raises(BackendError, match=r"\(5, 4\)"):
        segment_detections(outputs, stretched((8, 8), (8, 8)), OFFICIAL, None)


def test_there_are_no_classes_to_filter(rng: np.random.Generator, stretched: Place) -> None:
    with pytest.raises(UsageError, match="prompted"):
        postprocess(random_outputs(rng, queries=2), stretched((8, 8), (8, 8)), OFFICIAL, class_filter=frozenset({0}))
    assert num_classes(OFFICIAL, {"logits": (1, 200), "images": (1, 3, 8, 8)}) is None


def test_two_hundred_masks_of_24_megapixels_stay_below_a_gigabyte() -> None:
    """Case V52: all masks at once would be 19 GB as float32."""
    code = """
import numpy as np
from vtk.postprocess.api import postprocess
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.geometry import geometry_for
from vtk.preprocess.recipe import Recipe
rng = np.random.default_rng(1)
y, x = np.mgrid[:288, :288].astype(np.float32)
centers, radii = rng.uniform(0, 288, (200, 2)), rng.uniform(5, 60, 200)
masks = np.stack([r - np.hypot(x - cx, y - cy) for (cx, cy), r in zip(centers, radii)]).astype(np.float32)
outputs = {"masks": masks, "boxes_xyxy": np.zeros((200, 4), np.float32), "logits": np.full(200, 5, np.float32),
           "presence": np.full(1, 5, np.float32)}
found = postprocess(outputs, geometry_for(Recipe((1008, 1008)), (4000, 6000)), PostRecipe("segment"))
areas = found.masks.areas / (4000 * 6000)
assert len(found) == 200 and np.allclose(areas, (masks > 0).mean((1, 2)), atol=2e-3)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))  # of this program alone
print(int(peak.split()[1]) << 10)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1 << 30


def random_outputs(rng: np.random.Generator, *, queries: int) -> Outputs:
    return {
        "masks": rng.normal(size=(queries, 8, 8)).astype(np.float32),
        "boxes_xyxy": rng.uniform(size=(queries, 4)).astype(np.float32),
        "logits": rng.normal(size=queries).astype(np.float32),
        "presence": rng.normal(2, size=1).astype(np.float32),
    }
