"""Distances between what users see."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.postprocess.masks import Masks
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Classification, Detections, Embeddings, Result
from vtk.postprocess.rle import pack_counts
from vtk.result_json import result_from_json, result_to_json
from vtk.verify_report import Check
from vtk.verify_results import compare_ranks, compare_results
from vtk.verify_variation import class_entropy

POST = PostRecipe("detr", score_threshold=0.3)


def detections(*rows: tuple[float, float, float, float, float, int], wh: tuple[int, int] = (100, 80)) -> Detections:
    table = np.array(rows, np.float64).reshape(-1, 6)
    return Detections(table[:, :4].astype(np.float32), table[:, 4].astype(np.float32), table[:, 5].astype(np.int64), wh)


A = (10.0, 10.0, 50.0, 40.0, 0.9, 0)
B = (12.0, 10.0, 50.0, 41.0, 0.8, 1)
C = (60.0, 50.0, 61.0, 52.0, 0.5, 0)


def subjects(reference: Result, result: Result, post: PostRecipe = POST) -> set[str]:
    return {check.subject for check in compare_results(reference, result, post) if not check.passed}


@given(st.permutations([A, B, C]))
def test_the_order_of_detections_does_not_count(rows: list[tuple[float, float, float, float, float, int]]) -> None:
    assert subjects(detections(A, B, C), detections(*rows)) == set()


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ([A, B], {"detections missing"}),
        ([A, B, C, (0.0, 0.0, 9.0, 9.0, 0.4, 2)], {"detections too many"}),
        ([A, B, (*C[:5], 2)], {"detections missing", "detections too many"}),
        ([A, (*B[:4], 0.79, 1), C], {"score difference of pairs"}),
        ([(11.0, *A[1:]), B, C], {"1 - IoU of pairs"}),
        ([], {"detections missing"}),
        ([(*A[:4], 0.904, 0), (12.1, *B[1:]), C], set()),
    ],
)
def test_each_difference_is_named(other: list[tuple[float, float, float, float, float, int]], told: set[str]) -> None:
    assert subjects(detections(A, B, C), detections(*other)) == told


def test_two_pictures_without_detections_are_equal() -> None:
    assert subjects(detections(), detections()) == set()


@pytest.mark.parametrize(
    ("score", "told"), [(0.304, set()), (0.31, {"detections missing"}), (0.2, {"detections missing"})]
)
def test_only_scores_at_the_threshold_may_vanish(score: float, told: set[str]) -> None:
    assert subjects(detections(A, (*C[:4], score, 0)), detections(A)) == told


def test_the_last_of_a_full_list_may_vanish() -> None:
    full = replace(POST, max_detections=2)
    other = (70.0, 50.0, 80.0, 60.0, 0.798, 0)
    assert subjects(detections(A, B), detections(A, other), full) == set()
    assert subjects(detections(A, B), detections(A, other)) == {"detections missing", "detections too many"}


def test_a_box_without_area_equals_itself() -> None:
    flat = (10.0, 10.0, 10.0, 20.0, 0.9, 0)
    assert subjects(detections(flat), detections(flat)) == set()


def test_one_box_under_two_labels_is_matched_label_by_label() -> None:
    both = [(*A[:4], 0.9, 0), (*A[:4], 0.5, 1)]
    assert subjects(detections(*both), detections(*both[::-1])) == set()
    swapped = detections((*A[:4], 0.5, 0), (*A[:4], 0.9, 1))
    assert subjects(detections(*both), swapped) == {"score difference of pairs"}


def test_another_kind_or_size_of_picture_is_infinitely_far() -> None:
    vector = Embeddings(np.ones(3, np.float32), None, (100, 80))
    for other in (vector, detections(A, wh=(80, 100))):
        (check,) = compare_results(detections(A), other, POST)
        assert check.measured == np.inf


def classes(*pairs: tuple[int, float]) -> Classification:
    ids, scores = zip(*pairs, strict=True)
    return Classification(np.array(ids, np.int64), np.array(scores, np.float32), (8, 8))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ([(3, 0.601), (1, 0.299)], set()),
        ([(3, 0.6), (7, 0.297)], set()),
        ([(3, 0.6), (7, 0.2)], {"class score difference"}),
        ([(1, 0.6), (3, 0.3)], {"class score difference", "lead of the best class lost"}),
        ([(3, 0.6)], {"classes listed"}),
    ],
)
def test_classes_are_compared_by_score(other: list[tuple[int, float]], told: set[str]) -> None:
    assert subjects(classes((3, 0.6), (1, 0.3)), classes(*other)) == told


def vectors(*values: list[float]) -> list[Result]:
    return [Embeddings(np.array(value, np.float32), None, (8, 8)) for value in values]


def test_a_nearest_neighbor_that_changes_is_counted() -> None:
    reference = vectors([1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9])
    swapped = vectors([1, 0], [0.1, 0.9], [0, 1], [0.9, 0.1])
    (same,) = compare_ranks(reference, vectors([2, 0], [0.9, 0.11], [0, 1], [0.1, 0.9]))
    (other,) = compare_ranks(reference, swapped)
    assert (same.measured, other.measured) == (0, 4)
    assert compare_ranks(reference[:2], reference[:2]) == []


def test_class_entropy_is_that_of_the_best_classes() -> None:
    varied = np.eye(4)[[0, 1, 2, 3]]
    assert class_entropy(varied) == 2
    assert class_entropy(np.eye(4)[[1, 1, 1]]) == 0


@given(
    rows=st.lists(
        st.tuples(*[st.floats(-1e4, 1e4, width=32)] * 4, st.floats(0, 1, width=32), st.integers(0, 90)), max_size=5
    )
)
def test_results_survive_json_exactly(rows: list[tuple[float, float, float, float, float, int]]) -> None:
    result = detections(*rows)
    back = result_from_json(result_to_json(result))
    assert isinstance(back, Detections)
    for name in ("xyxy", "scores", "class_ids"):
        np.testing.assert_array_equal(getattr(back, name), getattr(result, name))
        assert getattr(back, name).dtype == getattr(result, name).dtype
    assert back.resolution_wh == result.resolution_wh


def test_masks_survive_json() -> None:
    found = detections((1, 2, 3, 4, 0.5, 0), (0, 0, 4, 2, 0.25, 1))
    rle = tuple(pack_counts(np.array(counts)) for counts in ([2, 6], [0, 1, 7]))
    masked = replace(found, resolution_wh=(4, 2), masks=Masks(rle, (4, 2)))
    back = result_from_json(json.loads(json.dumps(result_to_json(masked))))
    assert isinstance(back, Detections)
    assert back.masks is not None
    assert back.masks.rle == rle
    np.testing.assert_array_equal(back.masks.dense(), masked.masks.dense())


def test_other_results_survive_json_too() -> None:
    picked = result_from_json(result_to_json(classes((3, 0.6), (1, 0.3))))
    assert isinstance(picked, Classification)
    assert picked.class_ids.tolist() == [3, 1]
    (vector,) = vectors([0.1, 1e-30])
    back = result_from_json(result_to_json(vector))
    assert isinstance(back, Embeddings)
    assert back.pooled.tolist() == np.array([0.1, 1e-30], np.float32).tolist()
    with pytest.raises(ValueError, match="unknown result type"):
        result_from_json({"type": "masks", "resolution_wh": [1, 1], "scores": [], "class_ids": []})


@pytest.mark.parametrize("field", ["scores", "xyxy"])
def test_a_result_holds_no_number_that_is_none(field: str) -> None:
    data = {"type": "detections", "resolution_wh": [1, 1], "scores": [0.5], "class_ids": [0], "xyxy": [0, 0, 1, 1]}
    result_from_json(data)
    with pytest.raises(ValueError, match="not finite"):
        result_from_json({**data, field: [float("nan")] * (1 if field == "scores" else 4)})


def test_a_check_reads_as_a_sentence() -> None:
    check = Check("engine", "batch 2: cls max abs", 0.25, 1e-4, "cat.png in row 1")
    assert str(check) == "engine: batch 2: cls max abs 0.25, allowed 0.0001 (cat.png in row 1)"
