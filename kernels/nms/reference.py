"""Greedy class-aware non-maximum suppression, box by box, decision for decision that of torchvision."""

from __future__ import annotations

import torch


def nms(
    boxes: torch.Tensor, scores: torch.Tensor, class_ids: torch.Tensor, iou_threshold: float, max_detections: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which boxes of each picture are kept, by falling score; equal scores keep their order.

    boxes: (B, N, 4) xyxy. scores: (B, N); -inf where there is no box. class_ids: (B, N) integers. A box is
    dropped when its IoU with a kept one of its class is strictly above `iou_threshold`; a pair of empty boxes (0 / 0)
    does not suppress. Returns kept (B, max_detections) int64, the rest -1, and how many (B,) int32.
    """
    kept = torch.full((len(boxes), max_detections), -1)
    counts = torch.zeros(len(boxes), dtype=torch.int32)
    for row in range(len(boxes)):
        chosen: list[int] = []
        for index in scores[row].argsort(descending=True, stable=True).tolist():
            if len(chosen) == max_detections or scores[row, index] == -torch.inf:
                break
            rivals = [other for other in chosen if class_ids[row, other] == class_ids[row, index]]
            # Compared in float64: the threshold is not rounded to the type of the boxes.
            if not (_iou(boxes[row, index], boxes[row, rivals]).double() > iou_threshold).any():
                chosen.append(index)
        kept[row, : len(chosen)] = torch.tensor(chosen, dtype=torch.int64)
        counts[row] = len(chosen)
    return kept, counts


def _iou(box: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """IoU of one box (4,) with others (N, 4); NaN where both are empty."""
    overlap = (torch.minimum(box[2:], others[:, 2:]) - torch.maximum(box[:2], others[:, :2])).clamp(min=0).prod(1)
    area, areas = (box[2:] - box[:2]).prod(), (others[:, 2:] - others[:, :2]).prod(1)
    return overlap / (area + areas - overlap)
