"""Run lengths against the definition in plain Python, and against strings of pycocotools."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vtk.postprocess.rle import pack_counts, paint, paint_tight, unpack_counts


def naive_counts(mask: npt.NDArray[np.bool_]) -> list[int]:
    """rleEncode of maskApi.c: pixel by pixel, down the columns."""
    counts, value = [0], False
    for pixel in mask.T.ravel():
        if pixel != value:
            counts.append(0)
            value = not value
        counts[-1] += 1
    return counts


def naive_pack(counts: list[int]) -> str:
    """rleToString of maskApi.c, number by number."""
    text = ""
    for place, count in enumerate(counts):
        x = count - counts[place - 2] if place > 2 else count
        more = True
        while more:
            code = x & 31
            x >>= 5
            more = x != -1 if code & 16 else x != 0
            text += chr((code | 32 if more else code) + 48)
    return text


@pytest.mark.parametrize(
    ("counts", "text"),
    [  # what pycocotools 2.0 writes for these masks
        ([2, 3, 1, 1], "231N"),
        ([0, 6, 1], "061"),
        ([100, 5, 20, 5], "T35d00"),
        ([24_000_000], "P`]lf0"),
        ([0, 24_000_000], "0P`]lf0"),
        ([15, 16, 31, 32, 1023, 1, 5, 40_000], "?`0o0`0Po0QOVPOoQW1"),
    ],
)
def test_packed_counts_are_the_strings_of_pycocotools(counts: list[int], text: str) -> None:
    assert naive_pack(counts) == text
    assert pack_counts(np.array(counts)) == text.encode()
    assert unpack_counts(text.encode()).tolist() == counts


@given(st.lists(st.integers(0, 1 << 40), max_size=40))
def test_packing_equals_the_definition_and_comes_back(counts: list[int]) -> None:
    packed = pack_counts(np.array(counts, np.int64))
    assert packed.decode() == naive_pack(counts)
    assert unpack_counts(packed).tolist() == counts


@given(hnp.arrays(np.bool_, st.tuples(st.integers(1, 7), st.integers(1, 7))))
def test_masks_come_back_from_their_counts(mask: npt.NDArray[np.bool_]) -> None:
    np.testing.assert_array_equal(paint(np.array(naive_counts(mask)), mask.shape), mask)


@given(hnp.arrays(np.bool_, st.tuples(st.integers(1, 7), st.integers(1, 7))))
def test_the_tight_part_holds_every_pixel_and_no_empty_border(mask: npt.NDArray[np.bool_]) -> None:
    part, left, top = paint_tight(np.array(naive_counts(mask)), mask.shape)
    whole = np.zeros_like(mask)
    whole[top : top + part.shape[0], left : left + part.shape[1]] = part
    np.testing.assert_array_equal(whole, mask)
    if mask.any():
        assert part[0].any()
        assert part[-1].any()
        assert part[:, 0].any()
        assert part[:, -1].any()
    else:
        assert part.shape == (0, 0)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=9))
def test_runs_of_length_zero_change_nothing(counts: list[int]) -> None:
    size = (1, sum(counts))
    part, left, _ = paint_tight(np.array(counts), size)
    assert part.sum() == sum(counts[1::2])
    whole = paint(np.array(counts), size)
    np.testing.assert_array_equal(whole[:, left : left + part.shape[1]], part if part.size else whole[:, :0])


@pytest.mark.parametrize("data", [b"P", b"2/", b"2\xff", "é".encode()])
def test_bytes_that_are_no_counts_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="COCO mask"):
        unpack_counts(data)


@pytest.mark.parametrize("counts", [[], [5], [7], [-1, 7]])
def test_counts_that_do_not_fill_the_mask_are_refused(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="2 x 3"):
        paint(np.array(counts, np.int64), (2, 3))
    with pytest.raises(ValueError, match="2 x 3"):
        paint_tight(np.array(counts, np.int64), (2, 3))
