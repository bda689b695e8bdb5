"""Distances between raw outputs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.exporters.family import OutputSpec
from vtk.postprocess.detr import BOXES, LOGITS
from vtk.verify_limits import FP32
from vtk.verify_outputs import Row, compare_rows
from vtk.verify_report import Check, Report, worst

DETR = (OutputSpec(LOGITS, "logits", 1e-3), OutputSpec(BOXES, "boxes_cxcywh", 1e-4))
THRESHOLD = 0.3


def queries(seed: int, count: int = 200) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1, 2, (count, 4)).astype(np.float32)
    return {LOGITS: logits, BOXES: rng.uniform(0, 1, (count, 4)).astype(np.float32)}


def failed(reference: Row, row: Row, specs: tuple[OutputSpec, ...] = DETR) -> list[Check]:
    return [check for check in compare_rows(reference, row, specs, score_threshold=THRESHOLD) if not check.passed]


@given(seed=st.integers(0, 999), shuffle=st.integers(0, 999))
def test_queries_in_any_order_are_equal(seed: int, shuffle: int) -> None:
    row = queries(seed, 20)
    order = np.random.default_rng(shuffle).permutation(20)
    other = {name: array[order] for name, array in row.items()}
    assert [check.measured for check in compare_rows(row, other, DETR, score_threshold=THRESHOLD)] == [0, 0]


@pytest.mark.parametrize(("name", "error"), [(LOGITS, 2e-3), (BOXES, 2e-4)])
def test_an_error_beyond_the_limit_in_one_query_fails(name: str, error: float) -> None:
    row = queries(1)
    best = int(row[LOGITS].max(axis=1).argmax())
    other = {key: array.copy() for key, array in row.items()}
    other[name][best, 0] += error
    (check,) = failed(row, other)
    assert name in check.subject
    assert check.measured == pytest.approx(error, rel=1e-2)


def replaced(row: dict[str, np.ndarray], lines: list[int], logit: float) -> dict[str, np.ndarray]:
    """These queries are other ones, whose best logit is `logit`."""
    other = {key: array.copy() for key, array in row.items()}
    other[LOGITS][lines] = logit - np.arange(4)
    other[BOXES][lines] = 1 - other[BOXES][lines]
    return other


def test_another_pick_at_the_border_of_the_selection_is_excused_and_told() -> None:
    """Two tokens tie in the encoder's top-k: neither is reported, and which one comes is no fault."""
    row = queries(2)
    row[LOGITS][[5, 9]] = -4
    checks = compare_rows(row, replaced(row, [5, 9], -5), DETR, score_threshold=THRESHOLD)
    assert all(check.passed for check in checks)
    assert "2 of 200 queries" in checks[0].detail


@pytest.mark.parametrize("logit", [1.0, -0.5])
def test_a_query_that_would_be_reported_is_never_excused(logit: float) -> None:
    row = queries(2)
    row[LOGITS][5] = -4
    assert failed(row, replaced(row, [5], logit))
    assert failed(replaced(row, [5], logit), row)


def test_more_than_a_few_are_never_excused() -> None:
    row = queries(2)
    row[LOGITS][:3] = -4
    assert failed(row, replaced(row, [0, 1, 2], -5))


@pytest.mark.parametrize("kind", ["embedding", "tokens"])
def test_vectors_are_held_to_distance_and_direction(kind: str) -> None:
    specs = (OutputSpec("out", kind, 0.1),)  # type: ignore[arg-type]
    row = {"out": np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)}
    turned = {"out": np.array([[1.0, 0.0], [0.05, 1.0]], np.float32)}
    (check,) = failed(row, turned, specs)
    assert check.subject == "out 1 - cosine"
    assert check.measured == pytest.approx(1 - 1 / np.hypot(1, 0.05))
    assert check.limit == FP32.cosine_distance


def test_zero_vectors_are_equal_to_each_other_only() -> None:
    specs = (OutputSpec("out", "embedding", 10.0),)
    zero, one = {"out": np.zeros(3, np.float32)}, {"out": np.ones(3, np.float32)}
    assert failed(zero, zero, specs) == []
    assert failed(zero, one, specs)
    assert failed(one, zero, specs)


def test_yolo_boxes_and_scores_have_their_own_limits() -> None:
    specs = (OutputSpec("output0", "yolo", atol=0.05, score_atol=1e-3),)
    row = {"output0": np.zeros((6, 10), np.float32)}
    boxes, scores = np.zeros((2, 6, 10), np.float32)
    boxes[3, 2] = 0.01
    scores[4, 2] = 0.01
    assert failed(row, {"output0": boxes}, specs) == []
    assert [check.subject for check in failed(row, {"output0": scores}, specs)] == ["output0 scores max abs"]
    boxes[0, 0] = 0.1
    assert [check.subject for check in failed(row, {"output0": boxes}, specs)] == ["output0 boxes max abs"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [LOGITS, BOXES])
def test_what_is_not_finite_fails_on_either_side(name: str, value: float) -> None:
    row = queries(3)
    other = {key: array.copy() for key, array in row.items()}
    other[name][7, 1] = value
    for first, second in ((row, other), (other, row), (other, other)):
        (check,) = failed(first, second)
        assert check.measured == np.inf
        assert "1 values" in check.detail


def test_another_shape_fails() -> None:
    row = queries(3)
    other = row | {LOGITS: row[LOGITS][:, :3]}
    (check,) = failed(row, other)
    assert "shape (200, 3), expected (200, 4)" in check.detail


def test_nan_never_passes_and_counts_as_worst() -> None:
    good = Check("engine", "cls", 0.5, 1.0)
    assert not replace(good, measured=float("nan")).passed
    assert worst([good, replace(good, measured=float("nan")), replace(good, measured=2.0)])[0].measured != 2.0
    report = Report((good, replace(good, measured=float("nan"))), "ort", "cpu", (1,), 1, {})
    assert report.first_failure is report.checks[1]
    assert report.to_json()["results"][1]["measured"] == "nan"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 9)), min_size=1))
def test_the_worst_of_each_subject_stays(items: list[tuple[str, float]]) -> None:
    found = worst([Check("engine", subject, measured, 1.0) for subject, measured in items])
    assert {check.subject: check.measured for check in found} == {
        name: max(value for subject, value in items if subject == name) for name, _ in items
    }
