"""The pieces of SAM3 against the operations that they stand for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.exporters.modules.sam3_config import Sam3TextConfig
from vtk.exporters.modules.sam3_detr import compress, first_row_zero, inverse_sigmoid
from vtk.exporters.modules.sam3_geometry import pool_boxes
from vtk.exporters.modules.sam3_layers import (
    Attention,
    GroupNorm,
    cxcywh_to_xyxy,
    map_positions,
    padding_bias,
    sine_embedding,
)
from vtk.exporters.modules.sam3_text import Sam3Text, Sam3TextEncoder
from vtk.exporters.modules.sam3_vision import axial_rope, join_windows, rotate_pairs, split_windows, tile_positions

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "sam3_small.pt"


@pytest.mark.parametrize(("block", "side"), [(0, 8), (1, 16)])
def test_rotation_equals_the_official_complex_product(block: int, side: int) -> None:
    """Case V24: sine and cosine in place of complex numbers, which no engine has."""
    tensors = torch.load(GOLDEN, weights_only=True)["model"]
    table = tensors[f"detector.backbone.vision_backbone.trunk.blocks.{block}.attn.freqs_cis"]
    cos, sin = axial_rope(side, 16, theta=10000.0, scale=8 / side)
    x = torch.randn(2, 3, side * side, 16, generator=torch.Generator().manual_seed(block))
    wanted = torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], 8, 2)) * table).flatten(3)
    assert (x * cos + rotate_pairs(x) * sin - wanted).abs().max() <= 1e-6


def test_neighbors_are_pairs_and_not_halves() -> None:
    assert rotate_pairs(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [-2.0, 1.0, -4.0, 3.0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), height=st.integers(7, 30), width=st.integers(7, 30))
def test_pooled_boxes_equal_roi_align(seed: int, height: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(1, 4, height, width, generator=generator)
    boxes = torch.rand(6, 4, generator=generator)
    boxes[0] = torch.tensor([0.5, 0.5, 1.0, 1.0])  # the whole picture
    boxes[1, 2:] = 0  # a point
    boxes[2, :2] = torch.tensor([0.01, 0.98])  # nearly half outside
    scale = torch.tensor([width, height, width, height])
    wanted = torchvision.ops.roi_align(features, [cxcywh_to_xyxy(boxes) * scale], 7)
    torch.testing.assert_close(pool_boxes(features, boxes, 7), wanted, atol=1e-4, rtol=0)


def test_windows_are_squares_of_neighbors_and_come_back() -> None:
    x = torch.arange(2 * 6 * 6 * 3.0).view(2, 6, 6, 3)
    windows = split_windows(x, 3)
    assert windows.shape == (8, 9, 3)
    assert torch.equal(windows[1].view(3, 3, 3), x[0, :3, 3:])
    assert torch.equal(join_windows(windows, x.shape), x)


def test_positions_are_repeated_and_not_interpolated() -> None:
    table = torch.randn(1, 9, 2)
    tiled = tile_positions(table, 3, 7)
    assert tiled.shape == (1, 7, 7, 2)
    for row, column in ((0, 0), (2, 5), (6, 3)):
        assert torch.equal(tiled[0, row, column], table[0, (row % 3) * 3 + column % 3])


def test_sine_embedding_alternates_and_knows_its_frequencies() -> None:
    value, features = 0.3, 6
    wanted = [
        wave(value * 2 * math.pi / 10000 ** (index / features)) for index in (0, 2, 4) for wave in (math.sin, math.cos)
    ]
    torch.testing.assert_close(sine_embedding(torch.tensor([value]), features)[0], torch.tensor(wanted))


def test_a_map_has_rows_before_columns() -> None:
    positions = map_positions(5, 8).view(5, 5, 8)
    assert torch.equal(positions[2, 0, :4], positions[2, 4, :4])
    assert torch.equal(positions[0, 3, 4:], positions[4, 3, 4:])
    assert torch.equal(positions[1, 2, :4], positions[2, 1, 4:])


def test_what_is_masked_counts_for_nothing() -> None:
    torch.manual_seed(0)
    attention = Attention(8, 2)
    query, key = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    bias = padding_bias(torch.tensor([[1, 1, 0, 1, 0]]))
    wanted = attention(query, key[:, [0, 1, 3]], key[:, [0, 1, 3]])
    key[:, [2, 4]] = 100.0
    torch.testing.assert_close(attention(query, key, key, bias), wanted)
    nothing = attention(query, key, key, padding_bias(torch.zeros(1, 5, dtype=torch.int64)))
    assert nothing.isfinite().all()


def test_groups_are_normalized_as_torch_does() -> None:
    torch.manual_seed(0)
    ours, theirs = GroupNorm(8, 32), torch.nn.GroupNorm(8, 32)
    torch.nn.init.normal_(ours.weight)
    torch.nn.init.normal_(ours.bias)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 32, 5, 7) * 3 + 10
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=0)


def test_a_token_of_text_sees_only_those_before_it_and_padding_is_zero() -> None:
    torch.manual_seed(0)
    encoder = Sam3TextEncoder(Sam3Text(Sam3TextConfig(8, 2, 2, 16, 6, 20), 4)).eval()
    mask = torch.tensor([[1, 1, 1, 0, 0, 0]])
    (one,) = encoder(torch.tensor([[1, 2, 3, 4, 5, 6]]), mask)
    (two,) = encoder(torch.tensor([[1, 2, 9, 0, 0, 0]]), mask)
    assert torch.equal(one[:, :2], two[:, :2])
    assert not torch.equal(one[:, 2], two[:, 2])
    assert not one[:, 3:].any()
    assert encoder.causal.min() == -1e4


def test_the_box_bias_is_a_signed_logarithm() -> None:
    distance = torch.tensor([-1.0, -0.125, 0.0, 0.125, 1.0])
    wanted = torch.tensor([-math.log2(9) / 3, -1 / 3, 0.0, 1 / 3, math.log2(9) / 3])
    torch.testing.assert_close(compress(distance), wanted)


def test_logits_of_boxes_are_cut_at_a_thousandth() -> None:
    x = torch.tensor([0.0, 1e-6, 0.2, 0.999999, 1.0])
    found = inverse_sigmoid(x)
    assert found.isfinite().all()
    torch.testing.assert_close(found[2].sigmoid(), x[2])
    torch.testing.assert_close(found[0], torch.tensor(math.log(1e-3)))
    assert first_row_zero(torch.ones(1, 2, 3, 4)).sum(dim=(0, 1, 3)).tolist() == [0.0, 8.0, 8.0, 8.0]
