import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.postprocess.matching import match_queries


def outputs(seed: int, queries: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(queries, classes)).astype(np.float32), rng.random((queries, 4), dtype=np.float32)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), queries=st.integers(1, 60), classes=st.integers(1, 9))
def test_a_permutation_is_found_and_costs_nothing(seed: int, queries: int, classes: int) -> None:
    logits, boxes = outputs(seed, queries, classes)
    shuffle = np.random.default_rng(seed + 1).permutation(queries)
    match = match_queries(logits, boxes, logits[shuffle], boxes[shuffle])
    assert np.array_equal(shuffle[match.order], np.arange(queries))
    assert match.box_errors.max() == 0
    assert match.logit_errors.max() == 0


def test_errors_are_those_of_the_matched_pairs() -> None:
    logits, boxes = outputs(0, 40, 3)
    shuffle = np.random.default_rng(1).permutation(40)
    match = match_queries(logits, boxes, logits[shuffle] + 1e-3, boxes[shuffle] - 1e-4)
    assert np.allclose(match.logit_errors, 1e-3, atol=1e-6)
    assert np.allclose(match.box_errors, 1e-4, atol=1e-6)
    assert match.unmatched(box_atol=2e-4, logit_atol=2e-3) == 0
    assert match.unmatched(box_atol=5e-5, logit_atol=2e-3) == 40


def test_a_query_swapped_at_the_border_is_one_unmatched_and_spoils_no_other() -> None:
    """Case "DETR raw-tensor parity is meaningless": element-wise these differ by 1, matched by one query."""
    logits, boxes = outputs(2, 30, 5)
    other_logits, other_boxes = logits[::-1].copy(), boxes[::-1].copy()
    other_logits[7] += 0.5
    assert np.abs(boxes - other_boxes).max() > 0.5
    match = match_queries(logits, boxes, other_logits, other_boxes)
    assert match.unmatched(box_atol=1e-4, logit_atol=1e-3) == 1


def test_nan_is_an_error_of_its_own_query_only() -> None:
    logits, boxes = outputs(3, 10, 2)
    broken = boxes.copy()
    broken[4, 2] = np.nan
    match = match_queries(logits, boxes, logits, broken)
    assert match.unmatched(box_atol=1e-6, logit_atol=1e-6) == 1
    assert np.isinf(match.box_errors).sum() == 1


def test_infinite_logits_are_not_equal_to_finite_ones() -> None:
    logits, boxes = outputs(4, 6, 2)
    broken = logits.copy()
    broken[0, 0] = np.inf
    assert match_queries(logits, boxes, broken, boxes).unmatched(box_atol=1, logit_atol=1) == 1


def test_different_shapes_are_refused() -> None:
    logits, boxes = outputs(5, 6, 2)
    with pytest.raises(ValueError, match=r"\(6, 2\).*\(5, 2\)"):
        match_queries(logits, boxes, logits[:5], boxes[:5])
