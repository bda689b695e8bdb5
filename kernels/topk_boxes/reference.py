"""Post-processor of the DETR family: sigmoid, top-k over every (query, class) pair, no suppression."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class TopBoxes:
    """Of each picture the first `counts` of K rows; the others are 0, their labels -1.

    xyxy: (B, K, 4) float32 in pixels of the original picture, not clipped. scores: (B, K) float32 in 0..1, falling.
    labels: (B, K) int64. counts: (B,) int32.
    """

    xyxy: torch.Tensor
    scores: torch.Tensor
    labels: torch.Tensor
    counts: torch.Tensor


def topk_boxes(
    logits: torch.Tensor,
    boxes: torch.Tensor,
    geometry: torch.Tensor,
    max_detections: int,
    score_threshold: float = 0.0,
    classes: torch.Tensor | None = None,
) -> TopBoxes:
    """The best pairs whose score is strictly above the threshold; equal scores keep the order of (query, class).

    logits: (B, Q, C). boxes: (B, Q, 4) cxcywh in 0..1 of the network input. geometry: (B, 3, 2) float64, xy of the size
    of the network input, and of offset and scale of the original picture in it. classes: (C,) bool, those that may be
    found, all by default; it acts before the top-k.
    """
    batch, _, num_classes = logits.shape
    scores = logits.float().sigmoid()
    wanted = scores > score_threshold
    if classes is not None:
        wanted &= classes
    ranked, order = torch.where(wanted, scores, -1.0).flatten(1).sort(descending=True, stable=True)
    ranked, order = ranked[:, :max_detections], order[:, :max_detections]
    found = ranked > 0
    query = torch.div(order, num_classes, rounding_mode="floor")
    input_wh, offset, scale = geometry[:, :, None].unbind(1)
    cxcywh = boxes.double().gather(1, query[:, :, None].expand(-1, -1, 4))
    center, half = cxcywh[..., :2], cxcywh[..., 2:] / 2
    corners = [(corner * input_wh - offset) / scale for corner in (center - half, center + half)]
    result = TopBoxes(
        torch.zeros(batch, max_detections, 4),
        torch.zeros(batch, max_detections),
        torch.full((batch, max_detections), -1),
        found.sum(1, dtype=torch.int32),
    )
    rows = slice(ranked.shape[1])
    result.xyxy[:, rows] = torch.where(found[..., None], torch.cat(corners, -1).float(), 0.0)
    result.scores[:, rows] = torch.where(found, ranked, 0.0)
    result.labels[:, rows] = torch.where(found, order % num_classes, -1)
    return result
