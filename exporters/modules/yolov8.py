"""YOLOv8 detector, written from the published architecture, in the key layout of the released checkpoints.

Source of the structure and constants: the YOLOv8 model description (backbone Conv and C2f blocks, SPPF, a top-down and
bottom-up path, a decoupled anchor-free head with distribution focal loss, https://arxiv.org/abs/2006.04388). Blocks are
numbered 0 to 22 as in the description; 10, 11, 13, 14, 17 and 20 hold no weights and are plain operations here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

STRIDES = (8, 16, 32)
WIDTH_BLOCKS = (0, 1, 3, 5, 7)
C2F_BLOCKS = (2, 4, 6, 8, 12, 15, 18, 21)


@dataclass(frozen=True)
class YOLOv8Config:
    """All that shapes tell.

    widths: channels after `WIDTH_BLOCKS`. depths: bottlenecks in each of `C2F_BLOCKS`. box_channels, class_channels:
    hidden channels of the two head branches. reg_max: bins of a box side's distribution.
    """

    widths: tuple[int, int, int, int, int]
    depths: tuple[int, ...]
    num_classes: int
    box_channels: int
    class_channels: int
    reg_max: int


class Conv(nn.Module):
    """Convolution without bias, batch norm, SiLU; `same` padding for odd kernels."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(channels_out, eps=1e-3, momentum=0.03)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    """Two 3x3 convolutions at constant width, with a residual connection in the backbone."""

    def __init__(self, channels: int, *, shortcut: bool) -> None:
        super().__init__()
        self.cv1 = Conv(channels, channels, 3)
        self.cv2 = Conv(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.cv2(self.cv1(x))
        return x + y if self.shortcut else y


class C2f(nn.Module):
    """Cross-stage block: half of the channels pass a chain of bottlenecks, and every step of it is concatenated."""

    def __init__(self, channels_in: int, channels_out: int, depth: int, *, shortcut: bool) -> None:
        super().__init__()
        hidden = channels_out // 2
        self.cv1 = Conv(channels_in, 2 * hidden)
        self.cv2 = Conv((2 + depth) * hidden, channels_out)
        self.m = nn.ModuleList(Bottleneck(hidden, shortcut=shortcut) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.cv1(x).chunk(2, dim=1))
        for bottleneck in self.m:
            parts.append(bottleneck(parts[-1]))
        out: Tensor = self.cv2(torch.cat(parts, dim=1))
        return out


class SPPF(nn.Module):
    """Spatial pyramid pooling as three chained 5x5 max pools: windows of 5, 9 and 13."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1 = Conv(channels, channels // 2)
        self.cv2 = Conv(channels // 2 * 4, channels)

    def forward(self, x: Tensor) -> Tensor:
        pooled: list[Tensor] = [self.cv1(x)]
        for _ in range(3):
            pooled.append(functional.max_pool2d(pooled[-1], kernel_size=5, stride=1, padding=2))
        out: Tensor = self.cv2(torch.cat(pooled, dim=1))
        return out


class DFL(nn.Module):
    """The expectation of a discrete distribution over distances 0..reg_max-1; the bins are a fixed 1x1 convolution."""

    def __init__(self, reg_max: int) -> None:
        super().__init__()
        self.reg_max = reg_max
        self.conv = nn.Conv2d(reg_max, 1, 1, bias=False).requires_grad_(False)
        self.conv.weight.copy_(torch.arange(float(reg_max)).view(1, reg_max, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 4 * reg_max, A) logits to (N, 4, A) distances in units of the stride."""
        batch, _, anchors = x.shape
        bins = x.view(batch, 4, self.reg_max, anchors).transpose(1, 2).softmax(dim=1)
        distances: Tensor = self.conv(bins)
        return distances.view(batch, 4, anchors)


class Detect(nn.Module):
    """Decoupled head: for each level a box branch (cv2) and a class branch (cv3)."""

    def __init__(self, channels: Sequence[int], config: YOLOv8Config) -> None:
        super().__init__()
        self.cv2 = nn.ModuleList(_branch(c, config.box_channels, 4 * config.reg_max) for c in channels)
        self.cv3 = nn.ModuleList(_branch(c, config.class_channels, config.num_classes) for c in channels)
        self.dfl = DFL(config.reg_max)

    def forward(self, *levels: Tensor) -> tuple[Tensor, Tensor]:
        """Feature maps to distances (N, 4, A), left-top-right-bottom in strides, and class logits (N, C, A)."""
        boxes = [branch(x).flatten(2) for branch, x in zip(self.cv2, levels, strict=True)]
        classes = [branch(x).flatten(2) for branch, x in zip(self.cv3, levels, strict=True)]
        return self.dfl(torch.cat(boxes, dim=2)), torch.cat(classes, dim=2)


def _branch(channels_in: int, hidden: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(Conv(channels_in, hidden, 3), Conv(hidden, hidden, 3), nn.Conv2d(hidden, channels_out, 1))


class YOLOv8Model(nn.Module):
    """forward(images (N, 3, H, W) in 0..1, H and W multiples of 32) -> what `Detect` gives, levels 8, 16, 32."""

    def __init__(self, config: YOLOv8Config) -> None:
        super().__init__()
        w0, w1, w2, w3, w4 = config.widths
        depth = dict(zip(C2F_BLOCKS, config.depths, strict=True))
        blocks: dict[int, nn.Module] = {
            0: Conv(3, w0, 3, stride=2),
            1: Conv(w0, w1, 3, stride=2),
            2: C2f(w1, w1, depth[2], shortcut=True),
            3: Conv(w1, w2, 3, stride=2),
            4: C2f(w2, w2, depth[4], shortcut=True),
            5: Conv(w2, w3, 3, stride=2),
            6: C2f(w3, w3, depth[6], shortcut=True),
            7: Conv(w3, w4, 3, stride=2),
            8: C2f(w4, w4, depth[8], shortcut=True),
            9: SPPF(w4),
            12: C2f(w4 + w3, w3, depth[12], shortcut=False),
            15: C2f(w3 + w2, w2, depth[15], shortcut=False),
            16: Conv(w2, w2, 3, stride=2),
            18: C2f(w2 + w3, w3, depth[18], shortcut=False),
            19: Conv(w3, w3, 3, stride=2),
            21: C2f(w3 + w4, w4, depth[21], shortcut=False),
            22: Detect((w2, w3, w4), config),
        }
        self.model = nn.ModuleDict({str(index): block for index, block in blocks.items()})

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        stride8 = self._run(images, 0, 1, 2, 3, 4)
        stride16 = self._run(stride8, 5, 6)
        stride32 = self._run(stride16, 7, 8, 9)
        down16 = self._run(torch.cat([_double(stride32), stride16], dim=1), 12)
        out8 = self._run(torch.cat([_double(down16), stride8], dim=1), 15)
        out16 = self._run(torch.cat([self._run(out8, 16), down16], dim=1), 18)
        out32 = self._run(torch.cat([self._run(out16, 19), stride32], dim=1), 21)
        distances, logits = self.model["22"](out8, out16, out32)
        return distances, logits

    def _run(self, x: Tensor, *blocks: int) -> Tensor:
        for block in blocks:
            x = self.model[str(block)](x)
        return x


def _double(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")


class BoxDecode(nn.Module):
    """Distances from anchor points to cxcywh in pixels; points and strides of one input size are constants."""

    points: Tensor
    strides: Tensor

    def __init__(self, input_hw: tuple[int, int]) -> None:
        super().__init__()
        points, strides = anchor_points(input_hw)
        self.register_buffer("points", points, persistent=False)
        self.register_buffer("strides", strides, persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        """(N, 4, A) left-top-right-bottom in strides to (N, 4, A) cxcywh in pixels of the input."""
        left_top, right_bottom = distances.chunk(2, dim=1)
        low, high = self.points - left_top, self.points + right_bottom
        return torch.cat([(low + high) / 2, high - low], dim=1) * self.strides


def anchor_points(input_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Cell centers (2, A) as x, y in units of their stride, and strides (A,): levels 8, 16, 32, each row-major."""
    points, strides = [], []
    for stride in STRIDES:
        height, width = input_hw[0] // stride, input_hw[1] // stride
        y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        points.append(torch.stack([x, y]).flatten(1))
        strides.append(torch.full((height * width,), float(stride)))
    return torch.cat(points, dim=1), torch.cat(strides)


class YOLOv8Export(nn.Module):
    """forward(images (N, 3, *input_hw) in 0..1) -> (output0 (N, 4 + C, A),): cxcywh in pixels, then class scores."""

    def __init__(self, module: nn.Module, input_hw: tuple[int, int]) -> None:
        super().__init__()
        self.module = module
        self.decode = BoxDecode(input_hw)

    def forward(self, images: Tensor) -> tuple[Tensor]:
        distances, logits = self.module(images)
        return (torch.cat([self.decode(distances), logits.sigmoid()], dim=1),)
