"""Greedy non-maximum suppression on a GPU: one program a picture, no sort, no matrix of overlaps."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from vtk.kernels.cpu_checks import require
from vtk.kernels.cuda_cases import CompileCase, pointer_to

BLOCK = 4096
NUM_WARPS = 16


@triton.jit
def _area(x1: tl.tensor, y1: tl.tensor, x2: tl.tensor, y2: tl.tensor) -> tl.tensor:
    return (x2 - x1) * (y2 - y1)


@triton.jit
def _nms(
    boxes: tl.tensor,
    scores: tl.tensor,
    class_ids: tl.tensor,
    alive: tl.tensor,
    kept: tl.tensor,
    counts: tl.tensor,
    limit: tl.tensor,
    num_boxes: tl.tensor,
    max_detections: tl.tensor,
    boxes_picture: tl.tensor,
    boxes_row: tl.tensor,
    boxes_side: tl.tensor,
    scores_picture: tl.tensor,
    scores_row: tl.tensor,
    classes_picture: tl.tensor,
    classes_row: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    picture = tl.program_id(0).to(tl.int64)
    boxes += picture * boxes_picture
    class_ids += picture * classes_picture
    alive += picture * num_boxes
    kept += picture * max_detections
    highest = tl.full([], -float("inf"), tl.float32)
    best = tl.full([], 0, tl.int32)
    for start in range(0, num_boxes, BLOCK):
        place = start + tl.arange(0, BLOCK)
        found = place < num_boxes
        score = tl.load(scores + picture * scores_picture + place * scores_row, mask=found, other=-float("inf"))
        score = score.to(tl.float32)
        tl.store(alive + place, score, mask=found)
        top, at = tl.max(score, 0, return_indices=True)
        best = tl.where(top > highest, start + at, best)
        highest = tl.maximum(highest, top)
    count = tl.full([], 0, tl.int32)
    while (count < max_detections) & (highest > -float("inf")):
        tl.store(kept + count, best.to(tl.int64))
        box, its_class = boxes + best * boxes_row, tl.load(class_ids + best * classes_row)
        left, top_edge = tl.load(box).to(tl.float32), tl.load(box + boxes_side).to(tl.float32)
        right, bottom = tl.load(box + 2 * boxes_side).to(tl.float32), tl.load(box + 3 * boxes_side).to(tl.float32)
        chosen = best
        highest = tl.full([], -float("inf"), tl.float32)
        # What threads have stored in `alive` others may load.
        tl.debug_barrier()
        for start in range(0, num_boxes, BLOCK):
            place = start + tl.arange(0, BLOCK)
            score = tl.load(alive + place, mask=place < num_boxes, other=-float("inf"))
            live = score > -float("inf")
            other = boxes + place * boxes_row
            x1 = tl.load(other, mask=live, other=0.0).to(tl.float32)
            y1 = tl.load(other + boxes_side, mask=live, other=0.0).to(tl.float32)
            x2 = tl.load(other + 2 * boxes_side, mask=live, other=0.0).to(tl.float32)
            y2 = tl.load(other + 3 * boxes_side, mask=live, other=0.0).to(tl.float32)
            width = tl.maximum(tl.minimum(right, x2) - tl.maximum(left, x1), 0.0)
            height = tl.maximum(tl.minimum(bottom, y2) - tl.maximum(top_edge, y1), 0.0)
            overlap = width * height
            union = _area(left, top_edge, right, bottom) + _area(x1, y1, x2, y2) - overlap
            rival = tl.load(class_ids + place * classes_row, mask=live, other=0) == its_class
            dropped = (rival & (tl.div_rn(overlap, union) > limit)) | (place == chosen)
            tl.store(alive + place, -float("inf"), mask=live & dropped)
            top, at = tl.max(tl.where(dropped, -float("inf"), score), 0, return_indices=True)
            best = tl.where(top > highest, start + at, best)
            highest = tl.maximum(highest, top)
        count += 1
    tl.store(counts + picture, count)
    for start in range(0, max_detections, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(kept + place, tl.full([BLOCK], -1, tl.int64), mask=(place >= count) & (place < max_detections))


def nms(
    boxes: torch.Tensor, scores: torch.Tensor, class_ids: torch.Tensor, iou_threshold: float, max_detections: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.nms`, with the IoU in float32, from tensors of any float type, integer type and strides.

    Each kept box is one pass over the boxes that are left: it drops its rivals and finds the next best, so that time
    grows with what is kept, not with N squared, and nothing is sorted.

    Floor of 8 pictures of 1,000 boxes in float32, 100 kept: 0.2 MB, 0.06 us at 3.35 TB/s; 16 MFLOP. Predicted: below
    1 %, as the passes of a picture follow each other, each 1 to 2 us of latency: 0.15 ms for any batch up to 132.
    """
    batch, num_boxes, _ = boxes.shape
    fits = boxes.shape[2] == 4 and scores.shape == class_ids.shape == (batch, num_boxes)
    require(fits, "boxes (B, N, 4), scores (B, N) and class ids (B, N)", boxes, scores, class_ids)
    kept = torch.empty(batch, max_detections, dtype=torch.int64, device=boxes.device)
    counts = torch.empty(batch, dtype=torch.int32, device=boxes.device)
    alive = torch.empty(batch, num_boxes, dtype=torch.float32, device=boxes.device)
    if batch:
        _nms[(batch,)](
            boxes, scores, class_ids, alive, kept, counts, _at_most(iou_threshold), num_boxes, max_detections,
            *boxes.stride(), *scores.stride(), *class_ids.stride(),
            BLOCK=_block(num_boxes), num_warps=NUM_WARPS,
            # A fused multiplication and addition would decide pairs at the threshold otherwise than a CPU does.
            enable_fp_fusion=False,
        )  # fmt: skip
    return kept, counts


def _at_most(threshold: float) -> float:
    """The largest float32 that is not above: a float32 is above one of the two if it is above the other."""
    rounded = np.float32(threshold)
    # As a Python float: NumPy would round the threshold to compare it with a float32.
    return float(rounded if float(rounded) <= threshold else np.nextafter(rounded, np.float32(-np.inf)))


def _block(num_boxes: int) -> int:
    block: int = triton.next_power_of_2(num_boxes)
    return min(BLOCK, max(16, block))


def _case(dtype: torch.dtype, num_boxes: int) -> CompileCase:
    pointer = pointer_to(dtype)
    strides = ("boxes_picture", "scores_picture", "classes_picture")
    return CompileCase(
        name=f"nms {pointer[1:]} {num_boxes}",
        kernel=_nms,
        signature={
            "boxes": pointer, "scores": pointer, "class_ids": "*i64", "alive": "*fp32", "kept": "*i64",
            "counts": "*i32", "limit": "fp32", "num_boxes": "i32", "max_detections": "i32",
            **dict.fromkeys(strides, "i32"), "boxes_row": "i32",
        },
        constants={"boxes_side": 1, "scores_row": 1, "classes_row": 1, "BLOCK": _block(num_boxes)},
        aligned=("boxes", "scores", "class_ids", "alive", "kept", "counts", *strides),
        num_warps=NUM_WARPS,
    )  # fmt: skip


COMPILE_CASES = (_case(torch.float32, 8400), _case(torch.float32, 300), _case(torch.float16, 8400))
