"""What the launchers of the vision kernels start on a device; sizes of 1 are compiled as constants."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vtk.kernels.mask_upsample_threshold.cuda import mask_upsample_threshold
from vtk.kernels.ms_deform_attn.cuda import ms_deform_attn
from vtk.kernels.nms.cuda import nms
from vtk.kernels.resize_normalize.cuda import resize_normalize
from vtk.kernels.resize_normalize.plan import Placement, plan_resize
from vtk.kernels.topk_boxes.cuda import topk_boxes

Grid = tuple[int, int, int]


def zeros(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="meta")


def launch_resize(batch: int, height: int, width: int) -> None:
    placements = [Placement(60 * index, (4, 5), (height, width), (0, 0)) for index in range(batch)]
    plan = plan_resize(placements, (height, width), "pil_bicubic").to("meta")
    out = zeros(batch, 3, height, width)
    assert resize_normalize(zeros(60 * batch, dtype=torch.uint8), plan, out, (0, 0, 0), (1, 1, 1), 1) is out


def launch_nms(batch: int, num_boxes: int, max_detections: int) -> None:
    class_ids = zeros(batch, num_boxes, dtype=torch.int64)
    kept, counts = nms(zeros(batch, num_boxes, 4), zeros(batch, num_boxes), class_ids, 0.5, max_detections)
    assert (kept.shape, counts.shape) == ((batch, max_detections), (batch,))


def launch_topk(batch: int, queries: int, classes: int) -> None:
    logits, geometry = zeros(batch, queries, classes), zeros(batch, 3, 2, dtype=torch.float64)
    wanted = zeros(classes, dtype=torch.bool)
    assert topk_boxes(logits, zeros(batch, queries, 4), geometry, classes, 0.5, wanted).xyxy.shape[1] == classes


def launch_masks(num_masks: int, cells: int, side: int) -> None:
    axes = zeros(2, 3, dtype=torch.float64)
    masks = mask_upsample_threshold(zeros(num_masks, cells, cells), (side, side), axes, 0.0)
    assert masks.bits.shape == (num_masks, side, (side + 7) // 8)


def launch_attention(batch: int, heads: int, queries: int) -> None:
    points = zeros(batch, heads, queries, 3, 2), zeros(batch, heads, queries, 3)
    out = ms_deform_attn(zeros(batch, 10, heads, 8), ((2, 3), (1, 4)), (2, 1), *points)
    assert out.shape == (batch, queries, 8 * heads)


@pytest.mark.parametrize(
    ("launch", "sizes", "grid"),
    [
        (launch_resize, (3, 50, 200), (5, 13, 3)),
        (launch_resize, (1, 1, 1), (1, 1, 1)),
        (launch_nms, (3, 5000, 300), (3, 1, 1)),
        (launch_nms, (1, 1, 1), (1, 1, 1)),
        (launch_topk, (3, 300, 80), (3, 1, 1)),
        (launch_topk, (1, 1, 1), (1, 1, 1)),
        (launch_masks, (3, 20, 130), (3, 3, 3)),
        (launch_masks, (1, 1, 1), (1, 1, 1)),
        (launch_attention, (2, 3, 40), (3, 6, 1)),
        (launch_attention, (1, 1, 1), (1, 1, 1)),
    ],
)
def test_one_launch(
    fake_cuda: Callable[[int], Any], launch: Callable[..., None], sizes: tuple[int, ...], grid: Grid
) -> None:
    with fake_cuda(90) as device:
        launch(*sizes)
    assert [launched.grid for launched in device.launches] == [grid]
