"""The kernels of the vision path on the device beside their references: decisions and pixels are equal."""

from typing import Any

import pytest
import torch

from vtk.kernels.mask_upsample_threshold import cuda as masks_cuda
from vtk.kernels.mask_upsample_threshold import reference as masks_reference
from vtk.kernels.ms_deform_attn import cuda as deform_cuda
from vtk.kernels.ms_deform_attn import reference as deform_reference
from vtk.kernels.nms import cuda as nms_cuda
from vtk.kernels.nms import reference as nms_reference
from vtk.kernels.resize_normalize import cuda as resize_cuda
from vtk.kernels.resize_normalize import reference as resize_reference
from vtk.kernels.resize_normalize.plan import Placement, plan_resize
from vtk.kernels.resize_normalize.tables import Filter
from vtk.kernels.topk_boxes import cuda as topk_cuda
from vtk.kernels.topk_boxes import reference as topk_reference

pytestmark = pytest.mark.gpu

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("interpolation", ["pil_bilinear", "pil_bicubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_resize_normalize(gpu: Any, interpolation: Filter, dtype: torch.dtype) -> None:
    """A ragged batch: stretched, in borders, cut; a strip and a single pixel."""
    size = gpu.pick((224, 320), (5, 7))
    height, width = size
    sources = gpu.pick([(1080, 1920), (33, 800), (1, 1), (500, 375)], [(9, 20), (1, 1), (12, 5)])
    places = [(size, (0, 0)), ((height // 2, width), (0, height // 4)), ((2 * height, 2 * width), (-width // 2, -3))]
    placements, start = [], 3
    for index, source in enumerate(sources):
        placements.append(Placement(start, source, *places[index % len(places)]))
        start += source[0] * source[1] * 3 + 5
    pixels = torch.randint(256, (start,), dtype=torch.uint8)
    plan = plan_resize(placements, size, interpolation)
    expected = resize_reference.resize_normalize(pixels, plan, torch.empty(len(sources), 3, *size), MEAN, STD, 99)
    out = torch.full(expected.shape, torch.nan, dtype=dtype, device=gpu.device)
    resize_cuda.resize_normalize(pixels.to(gpu.device), plan.to(gpu.device), out, MEAN, STD, 99)
    assert torch.equal(out.cpu(), expected.to(dtype))


@pytest.mark.parametrize("iou_threshold", [0.45, 0.7, 1.0])
def test_nms(gpu: Any, iou_threshold: float) -> None:
    batch, boxes, wanted = gpu.pick((3, 700, 100), (2, 12, 5))
    center = torch.randint(0, 9, (batch, boxes, 1)) * 20.0 + torch.rand(batch, boxes, 2) * 9
    half = torch.rand(batch, boxes, 2) * 12
    scores = torch.randint(1, 50, (batch, boxes)) / 50
    scores[torch.rand(batch, boxes) < 0.1] = -torch.inf
    scene = torch.cat([center - half, center + half], 2), scores, torch.randint(0, 3, (batch, boxes))
    result = nms_cuda.nms(*(part.to(gpu.device) for part in scene), iou_threshold, wanted)
    expected = nms_reference.nms(*scene, iou_threshold, wanted)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize(("wanted", "threshold"), [(300, 0.0), (100, 0.9), (1, 0.5)])
def test_topk_boxes(gpu: Any, wanted: int, threshold: float) -> None:
    queries, classes, wanted = gpu.pick((300, 20, wanted), (5, 3, min(wanted, 9)))
    # All different, so that no rounding of a score swaps two.
    logits = torch.stack([torch.linspace(-6, 6, queries * classes)[torch.randperm(queries * classes)] for _ in "ab"])
    logits, boxes = logits.view(2, queries, classes), torch.rand(2, queries, 4)
    geometry = torch.tensor([[640.0, 480], [3, 20], [0.7, 0.6]], dtype=torch.float64).expand(2, 3, 2).contiguous()
    allowed = torch.rand(classes) < 0.7
    inputs = (logits, boxes, geometry)
    found = topk_cuda.topk_boxes(*(part.to(gpu.device) for part in inputs), wanted, threshold, allowed.to(gpu.device))
    expected = topk_reference.topk_boxes(*inputs, wanted, threshold, allowed)
    assert torch.equal(found.counts.cpu(), expected.counts)
    assert torch.equal(found.labels.cpu(), expected.labels)
    assert torch.equal(found.xyxy.cpu(), expected.xyxy)
    torch.testing.assert_close(found.scores.cpu(), expected.scores, rtol=2e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_mask_upsample_threshold(gpu: Any, dtype: torch.dtype) -> None:
    masks, cells_hw, size_hw = gpu.pick((5, (120, 160), (533, 801)), (2, (4, 5), (11, 9)))
    values = torch.randn(masks, *cells_hw).to(dtype)
    values[0] = -1  # nothing of it is set
    axes = torch.tensor(
        [[scale, offset, cells / (side * scale)] for scale, offset, cells, side in
         ((0.8, 3.0, cells_hw[1], size_hw[1]), (1.3, -2.0, cells_hw[0], size_hw[0]))], dtype=torch.float64,
    )  # fmt: skip
    found = masks_cuda.mask_upsample_threshold(values.to(gpu.device), size_hw, axes.to(gpu.device), 0.2)
    expected = masks_reference.mask_upsample_threshold(values, size_hw, axes, 0.2)
    for name in ("bits", "areas", "boxes"):
        assert torch.equal(getattr(found, name).cpu(), getattr(expected, name)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [32, 20])
def test_ms_deform_attn(gpu: Any, dtype: torch.dtype, dim: int) -> None:
    levels, points = gpu.pick((((80, 64), (40, 32), (7, 5)), (3, 6, 3)), (((4, 3), (1, 2)), (1, 2)))
    batch, heads, queries = gpu.pick((2, 8, 301), (1, 2, 5))
    positions = sum(height * width for height, width in levels)
    value = torch.randn(batch, positions, heads, dim).to(dtype)
    locations = (torch.rand(batch, heads, queries, sum(points), 2) * 1.4 - 0.2).to(dtype)
    weights = torch.randn(batch, heads, queries, sum(points)).softmax(-1).to(dtype)
    exact = deform_reference.ms_deform_attn(value.double(), levels, points, locations.double(), weights.double())
    inputs = [part.to(gpu.device) for part in (value, locations, weights)]
    result = deform_cuda.ms_deform_attn(inputs[0], levels, points, inputs[1], inputs[2])
    tolerance = {torch.float32: 4e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(result.cpu().double(), exact, rtol=tolerance, atol=tolerance)
