from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vtk.exporters.families.coco import COCO_CATEGORY_IDS, COCO_NAMES
from vtk.exporters.modules.deformable import deform_attn
from vtk.exporters.modules.dfine_decoder import bin_values, inverse_sigmoid, select_top, shift_edges
from vtk.exporters.modules.fold import fold_batch_norms, merge_rep_vgg
from vtk.exporters.modules.grids import INVALID_LOGIT, anchor_logits, sincos_position
from vtk.exporters.modules.hybrid_encoder import FusionBlock
from vtk.exporters.modules.layers import SelfAttention

seeds = st.integers(0, 2**31 - 1)


def bilinear(value: torch.Tensor, x: float, y: float) -> torch.Tensor:
    """Sample (D, h, w) at pixel coordinates, zeros outside."""
    total = torch.zeros(value.shape[0], dtype=value.dtype)
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < value.shape[1] and 0 <= column < value.shape[2]:
                total += value[:, row, column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return total


@settings(max_examples=20, deadline=None)
@given(seed=seeds, batch=st.integers(1, 2), heads=st.integers(1, 3), points=st.lists(st.integers(1, 3), min_size=1))
def test_deformable_attention_is_a_weighted_sum_of_bilinear_samples(
    seed: int, batch: int, heads: int, points: list[int]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    points, queries, dim, total = points[:3], 2, 2, sum(points[:3])
    maps = [torch.randn(batch, heads * dim, 3 + i, 5 - i, generator=generator).double() for i in range(len(points))]
    locations = torch.rand(batch, heads, queries, total, 2, generator=generator).double() * 1.6 - 0.3
    weights = torch.rand(batch, heads, queries, total, generator=generator).double()
    wanted = torch.zeros(batch, queries, heads * dim, dtype=torch.double)
    level_of = [level for level, count in enumerate(points) for _ in range(count)]
    for b, h, q, p in torch.cartesian_prod(*map(torch.arange, weights.shape)).tolist():
        value = maps[level_of[p]][b, h * dim : (h + 1) * dim]
        x, y = locations[b, h, q, p].tolist()
        sample = bilinear(value, x * value.shape[2] - 0.5, y * value.shape[1] - 0.5)
        wanted[b, q, h * dim : (h + 1) * dim] += weights[b, h, q, p] * sample
    assert torch.allclose(deform_attn(maps, locations, weights, points), wanted, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, scale=st.floats(0.5, 10))
def test_shifted_edges_lie_where_the_distances_say(seed: int, scale: float) -> None:
    """Edge = center -+ (scale / 2 + distance) * size / scale, the formula of the D-FINE paper."""
    generator = torch.Generator().manual_seed(seed)
    boxes, distances = torch.rand(2, 1, 6, 4, generator=generator, dtype=torch.double)
    center, size = boxes[..., :2], boxes[..., 2:]
    low = center - (scale / 2 + distances[..., :2]) * size / scale
    high = center + (scale / 2 + distances[..., 2:]) * size / scale
    moved = shift_edges(boxes, distances, scale)
    assert torch.allclose(moved[..., :2] - moved[..., 2:] / 2, low)
    assert torch.allclose(moved[..., :2] + moved[..., 2:] / 2, high)


def test_bins_are_odd_symmetric_growing_and_bounded_as_published() -> None:
    bins = bin_values(32, 0.5, 4.0)
    assert bins.shape == (33,)
    assert torch.equal(bins, -bins.flip(0))
    assert bool((bins.diff() > 0).all())
    assert bins[-1] == 4.0
    assert bins[-2] == pytest.approx(2.0, abs=1e-6)
    assert bins[17] == pytest.approx(3 ** (2 / 30) - 1, abs=1e-6)
    growth = (bins[18:32] + 1) / (bins[17:31] + 1)
    assert torch.allclose(growth, torch.full((14,), 3 ** (2 / 30)))


@settings(max_examples=30, deadline=None)
@given(seed=seeds, count=st.integers(1, 50))
def test_selection_is_by_score_and_ties_go_to_the_lower_index(seed: int, count: int) -> None:
    scores = torch.randint(0, 5, (2, 50), generator=torch.Generator().manual_seed(seed)).float()
    for row, chosen in zip(scores.tolist(), select_top(scores, count).tolist(), strict=True):
        assert chosen == sorted(range(50), key=lambda index: (-row[index], index))[:count]


def test_inverse_sigmoid_undoes_the_sigmoid_and_is_finite_at_the_ends() -> None:
    x = torch.linspace(-9, 9, 31, dtype=torch.double)
    assert torch.allclose(inverse_sigmoid(x.sigmoid()), x)
    assert inverse_sigmoid(torch.tensor([0.0, 1.0])).tolist() == pytest.approx(
        [-math.log(1e5), math.log(1e5)], rel=1e-3
    )


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_attention_equals_that_of_torch_with_the_same_parameters(seed: int) -> None:
    torch.manual_seed(seed)
    ours, theirs = SelfAttention(24, 4).double(), nn.MultiheadAttention(24, 4, batch_first=True).double()
    nn.init.normal_(theirs.in_proj_bias)
    ours.load_state_dict(theirs.state_dict())
    x, position = torch.randn(2, 2, 7, 24, dtype=torch.double)
    wanted, _ = theirs(x + position, x + position, x, need_weights=False)
    assert torch.allclose(ours(x, position), wanted)


def test_folding_keeps_the_outputs_and_leaves_no_norm() -> None:
    torch.manual_seed(0)
    block = FusionBlock(8, 6, 2).double().eval()
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    folded = copy.deepcopy(block)
    fold_batch_norms(folded)
    merge_rep_vgg(folded)
    x = torch.randn(2, 16, 9, 7, dtype=torch.double)
    assert torch.allclose(folded(x), block(x))
    kinds = [type(module) for module in folded.modules()]
    assert nn.BatchNorm2d not in kinds
    assert kinds.count(nn.Conv2d) == sum(isinstance(module, nn.Conv2d) for module in block.modules()) - 4
    assert not any(module.training for module in folded.modules())


def test_position_embedding_of_one_known_cell() -> None:
    table = sincos_position((3, 3), 8)[0]
    assert table.shape == (9, 8)
    row, column = 2, 1
    angles = torch.tensor([1.0, 0.01])
    parts = [(row * angles).sin(), (row * angles).cos(), (column * angles).sin(), (column * angles).cos()]
    assert torch.allclose(table[3 * row + column], torch.cat(parts))


def test_anchors_at_the_border_of_a_fine_grid_are_invalid() -> None:
    logits, valid = anchor_logits([(60, 60), (30, 30)])
    boxes = logits.sigmoid()
    border = torch.ones(60, 60, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    assert torch.equal(valid[:3600, 0], ~border.flatten())
    assert bool(valid[3600:].all())
    assert bool((logits[~valid[:, 0]] == INVALID_LOGIT).all())
    assert bool((boxes[~valid[:, 0]] == 1).all())
    assert torch.allclose(boxes[3600 + 31], torch.tensor([1.5 / 30, 1.5 / 30, 0.1, 0.1]))


def test_coco_has_80_classes_with_the_known_gaps_in_their_ids() -> None:
    assert len(COCO_NAMES) == len(set(COCO_NAMES)) == len(COCO_CATEGORY_IDS) == 80
    ids = dict(zip(COCO_NAMES, COCO_CATEGORY_IDS, strict=True))
    assert (ids["person"], ids["stop sign"], ids["dining table"], ids["toothbrush"]) == (1, 13, 67, 90)
    assert list(COCO_CATEGORY_IDS) == sorted(COCO_CATEGORY_IDS)
