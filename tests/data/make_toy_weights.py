"""Write the small trained detectors of golden/: one per family, each taught the 24 pictures of toy_images by heart.

    python tests/data/make_toy_weights.py rtdetrv2|rfdetr|deimv2_atto|deimv2_sta|yolov8 [--out DIR] [--steps N]

No test runs it; it takes up to ten minutes per model on one core. What the tests need of these weights is that scores
are as far apart as those of a trained detector are, and that the boxes lie on objects. Needs transformers and scipy.
"""

from __future__ import annotations

import argparse
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import RfDetrConfig, RfDetrForObjectDetection, RTDetrV2Config, RTDetrV2ForObjectDetection
from transformers.loss.loss_rt_detr import RTDetrLoss
from transformers.models.rt_detr.configuration_rt_detr_resnet import RTDetrResNetConfig

from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.family import FamilyOptions, ModelSpec
from vtk.exporters.modules.deimv2_backbone import DinoSTA
from vtk.exporters.modules.grids import anchor_logits
from vtk.exporters.modules.yolov8 import BoxDecode, YOLOv8Config, YOLOv8Model, anchor_points
from vtk.exporters.registry import identify
from vtk.preprocess.apply import preprocess
from vtk.preprocess.decode import decode
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

GOLDEN = Path(__file__).parent / "golden"
CLASSES: list[str] = json.loads((GOLDEN / "toy_labels.json").read_text())
BATCH = 12
QUERIES = 60
# The largest shift (share of the side), change of scale and change of brightness of a picture in training.
SHIFT, SCALE, BRIGHTNESS = 0.08, 0.12, 0.15


@dataclass(frozen=True)
class Pictures:
    """images (N, 3, S, S) in 0..1; per picture boxes (n, 4) cxcywh as shares of the input, and classes (n,)."""

    images: Tensor
    boxes: list[Tensor]
    classes: list[Tensor]

    def targets(self) -> list[dict[str, Tensor]]:
        pairs = zip(self.boxes, self.classes, strict=True)
        return [{"boxes": boxes, "class_labels": classes} for boxes, classes in pairs]


def read_pictures(recipe: Recipe) -> Pictures:
    """The toy pictures as the recipe places them, without its mean and standard deviation."""
    data = json.loads((GOLDEN / "toy_annotations.json").read_text())
    plain = replace(recipe, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    height, width = recipe.size_hw
    images, all_boxes, all_classes = [], [], []
    for image in data["images"]:
        prepared = preprocess(decode(GOLDEN / "toy_images" / image["file_name"]), plain)
        items = [item for item in data["annotations"] if item["image_id"] == image["id"]]
        x, y, w, h = torch.tensor([item["bbox"] for item in items]).unbind(1)
        corners = prepared.geometry.boxes_to_input(torch.stack([x, y, x + w, y + h], 1).double().numpy())
        left, top, right, bottom = torch.from_numpy(corners).float().unbind(1)
        centers = ((left + right) / 2 / width, (top + bottom) / 2 / height)
        images.append(torch.from_numpy(prepared.tensor))
        all_boxes.append(torch.stack([*centers, (right - left) / width, (bottom - top) / height], 1))
        all_classes.append(torch.tensor([item["category_id"] for item in items]))
    return Pictures(torch.stack(images), all_boxes, all_classes)


def augmented(pictures: Pictures, generator: torch.Generator) -> Pictures:
    """A batch of different pictures, each moved, scaled and made brighter or darker."""
    chosen = torch.randperm(len(pictures.images), generator=generator)[:BATCH]
    noise = torch.rand(BATCH, 4, generator=generator) * 2 - 1
    scale, shift, light = 1 + SCALE * noise[:, 0], SHIFT * noise[:, 1:3], 1 + BRIGHTNESS * noise[:, 3]
    matrix = torch.zeros(BATCH, 2, 3)
    matrix[:, 0, 0] = matrix[:, 1, 1] = 1 / scale
    matrix[:, :, 2] = -2 * shift / scale[:, None]
    grid = functional.affine_grid(matrix, list(pictures.images[chosen].shape), align_corners=False)
    images = functional.grid_sample(pictures.images[chosen], grid, padding_mode="border", align_corners=False)
    boxes, classes = [], []
    for row, index in enumerate(chosen.tolist()):
        moved = pictures.boxes[index] * scale[row]
        moved[:, :2] += shift[row] + (1 - scale[row]) / 2
        inside = ((moved[:, :2] > 0.02) & (moved[:, :2] < 0.98)).all(1)
        boxes.append(moved[inside])
        classes.append(pictures.classes[index][inside])
    return Pictures((images * light[:, None, None, None]).clamp(0, 1), boxes, classes)


class Lesson(ABC):
    """A model, what its training minimizes, and how it is stored."""

    recipe: Recipe
    module: nn.Module
    rate: float
    steps: int

    def normalized(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.recipe.mean, self.recipe.std))
        return (images - mean) / std

    @abstractmethod
    def loss(self, pictures: Pictures) -> Tensor:
        """Of one batch."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the weights in half precision, which loses nothing that matters and halves the file."""


class HuggingFace(Lesson):
    """transformers' model with transformers' loss, stored as transformers stores it."""

    def __init__(self, module: Any, name: str, recipe: Recipe, *, rate: float, steps: int) -> None:
        self.module, self.name, self.recipe, self.rate, self.steps = module, name, recipe, rate, steps

    def loss(self, pictures: Pictures) -> Tensor:
        value: Tensor = self.module(self.normalized(pictures.images), labels=pictures.targets()).loss
        return value

    def save(self, folder: Path) -> None:
        self.module.half().save_pretrained(folder / self.name)  # type: ignore[operator]


class Official(Lesson):
    """Our module of a family, whose tensors are stored under the names of the file that it was inferred from."""

    def __init__(self, name: str, start: Mapping[str, Tensor], size: int, *, rate: float, steps: int) -> None:
        self.name, self.rate, self.steps = name, rate, steps
        self.start = Checkpoint(Path(f"{name}.pth"), "pth", start, "0" * 64, "0" * 64, "flat", ("flat",))
        options = FamilyOptions(size_hw=(size, size))
        self.family, self.spec = identify(self.start, options)
        self.spec = with_queries(self.spec)
        self.recipe = self.spec.recipe
        self.module = self.family.build(self.spec).requires_grad_(True)

    def stored(self) -> dict[str, Tensor]:
        """Under the names of the file: parameters in half precision; buffers, which are small, as they are."""
        parameters = dict(self.module.named_parameters())
        state = {
            key.replace("dinov3.vit.", "dinov3."): value.half() if key in parameters else value
            for key, value in self.module.state_dict().items()
        }
        names = {id(value): name for name, value in self.start.tensors.items()}
        renamed = {names[id(value)]: key for key, value in self.family.remap(self.start, self.spec).items()}
        return {name: state.get(renamed[name], value).clone() for name, value in self.start.tensors.items()}

    def save(self, folder: Path) -> None:
        torch.save({"model": self.stored()}, folder / f"{self.name}.pth")


def with_queries(spec: ModelSpec) -> ModelSpec:
    return replace(spec, config={**spec.config, "queries": QUERIES}) if "queries" in spec.config else spec


class DEIMv2(Official):
    """Matched losses of the last layer, and one for the scores of all tokens, which no gradient reaches otherwise."""

    def __init__(self, name: str, golden: str, size: int, *, rate: float, steps: int) -> None:
        super().__init__(name, deimv2_start(golden, size), size, rate=rate, steps=steps)
        if isinstance(self.module.backbone, DinoSTA):
            self.module.backbone.bake()
        self.criterion = RTDetrLoss(RTDetrV2Config(num_labels=len(CLASSES)))
        self.tokens = torch.empty(0)
        assert isinstance(self.module.decoder, nn.Module)
        self.module.decoder.get_submodule("enc_score_head").register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.tokens = output

    def loss(self, pictures: Pictures) -> Tensor:
        logits, boxes = self.module(self.normalized(pictures.images))
        losses = self.criterion({"logits": logits, "pred_boxes": boxes}, pictures.targets())
        total: Tensor = sum(losses.values(), start=torch.zeros(()))
        return total + self._token_loss(pictures)

    def _token_loss(self, pictures: Pictures) -> Tensor:
        """Tokens whose anchor lies in the middle half of an object should have its class."""
        anchors = self.module.get_buffer("decoder.anchors").sigmoid()
        wanted = torch.zeros_like(self.tokens)
        for row, (boxes, classes) in enumerate(zip(pictures.boxes, pictures.classes, strict=True)):
            away = (anchors[:, None, :2] - boxes[None, :, :2]).abs() / boxes[None, :, 2:]
            token, item = (away.amax(-1) < 0.3).nonzero(as_tuple=True)
            wanted[row, token, classes[item]] = 1
        return functional.binary_cross_entropy_with_logits(self.tokens, wanted, reduction="sum") / wanted.sum()


def deimv2_start(golden: str, size: int) -> dict[str, Tensor]:
    """A golden file with our classes and the anchors of our size."""
    tensors = dict(read_checkpoint(GOLDEN / f"{golden}.pth").tensors)
    for key, value in tensors.items():
        if "_score_head" in key:
            tensors[key] = value[: len(CLASSES)].clone()
        elif "denoising_class_embed" in key:
            tensors[key] = value[: len(CLASSES) + 1].clone()
    levels = 2 if "encoder.bi_fusion.cv.conv.weight" in tensors else 3
    sides = [(size // stride, size // stride) for stride in (8, 16, 32)[-levels:]]
    anchors, valid = anchor_logits(sides)
    return tensors | {"decoder.anchors": anchors[None], "decoder.valid_mask": valid[None]}


class YOLO(Official):
    """Cross entropy of all cells, and overlap of the boxes of those in the middle of an object of their size."""

    def __init__(self, config: YOLOv8Config, size: int, *, rate: float, steps: int) -> None:
        super().__init__("toy_yolov8", YOLOv8Model(config).state_dict(), size, rate=rate, steps=steps)
        self.size = size
        self.decode = BoxDecode((size, size))
        self.points, self.strides = anchor_points((size, size))

    def loss(self, pictures: Pictures) -> Tensor:
        distances, logits = self.module(pictures.images)
        found = self.decode(distances).transpose(1, 2) / self.size
        wanted = torch.zeros_like(logits)
        overlap = torch.zeros(())
        for row, (boxes, classes) in enumerate(zip(pictures.boxes, pictures.classes, strict=True)):
            cell, item = self._assign(boxes)
            wanted[row, classes[item], cell] = 1
            overlap = overlap + (1 - giou(found[row, cell], boxes[item])).sum()
        scores = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
        return (scores + 2 * overlap) / wanted.sum().clamp(min=1)

    def _assign(self, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """(cell, object) pairs: the cell of a fitting stride is near to the center of the object."""
        centers = (self.points * self.strides / self.size).T
        away = (centers[:, None] - boxes[None, :, :2]).abs().amax(-1) * self.size / self.strides[:, None]
        side = boxes[:, 2:].amax(-1) * self.size
        stride = torch.where(side < 32, 8.0, torch.where(side < 64, 16.0, 32.0))
        cell, item = ((away < 1.2) & (self.strides[:, None] == stride)).nonzero(as_tuple=True)
        return cell, item


def corners(boxes: Tensor) -> Tensor:
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def giou(found: Tensor, wanted: Tensor) -> Tensor:
    """Generalized overlap (arXiv 1902.09630) of pairs of boxes cxcywh (n, 4)."""
    a, b = corners(found), corners(wanted)
    inner = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(-1)
    outer = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(-1)
    union = found[:, 2:].prod(-1) + wanted[:, 2:].prod(-1) - inner
    return inner / union - (outer - union) / outer


def rtdetrv2() -> Lesson:
    """The layout of R18 with narrow layers."""
    widths = [16, 32, 64, 96]
    backbone = RTDetrResNetConfig(
        embedding_size=16,
        hidden_sizes=widths,
        depths=[2, 2, 2, 2],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrV2Config(
        backbone_config=backbone,
        freeze_backbone_batch_norms=False,
        encoder_hidden_dim=64,
        encoder_in_channels=widths[1:],
        encoder_ffn_dim=128,
        encoder_attention_heads=8,
        hidden_expansion=0.5,
        d_model=64,
        decoder_in_channels=[64, 64, 64],
        decoder_ffn_dim=128,
        decoder_layers=2,
        decoder_attention_heads=8,
        num_queries=QUERIES,
        num_denoising=20,
        num_labels=len(CLASSES),
    )
    return HuggingFace(RTDetrV2ForObjectDetection(config), "toy_rtdetrv2", Recipe((128, 128)), rate=1e-3, steps=1500)


def rfdetr() -> Lesson:
    """Six blocks, of which three give a map and attend across 2 x 2 windows."""
    backbone = {
        "model_type": "rf_detr_dinov2",
        "hidden_size": 96,
        "num_hidden_layers": 6,
        "num_attention_heads": 3,
        "mlp_ratio": 3,
        "image_size": 160,
        "patch_size": 16,
        "num_windows": 2,
        "out_features": ["stage2", "stage4", "stage6"],
    }
    config = RfDetrConfig(
        backbone_config=backbone,
        d_model=64,
        decoder_ffn_dim=128,
        decoder_n_points=2,
        decoder_layers=2,
        decoder_self_attention_heads=4,
        decoder_cross_attention_heads=8,
        num_queries=40,
        num_labels=len(CLASSES),
        group_detr=1,
    )
    recipe = Recipe((160, 160), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return HuggingFace(RfDetrForObjectDetection(config), "toy_rfdetr", recipe, rate=1e-3, steps=800)


def yolov8() -> Lesson:
    """Half as wide as n."""
    depths = (1, 2, 2, 1, 1, 1, 1, 1)
    config = YOLOv8Config((8, 16, 32, 64, 128), depths, len(CLASSES), box_channels=32, class_channels=32, reg_max=16)
    return YOLO(config, 160, rate=2e-3, steps=1500)


LESSONS = {
    "rtdetrv2": rtdetrv2,
    "rfdetr": rfdetr,
    "deimv2_atto": lambda: DEIMv2("toy_deimv2_atto", "deimv2_atto", 160, rate=1e-3, steps=1500),
    "deimv2_sta": lambda: DEIMv2("toy_deimv2_sta", "deimv2_s_small", 128, rate=1e-3, steps=1500),
    "yolov8": yolov8,
}


def teach(lesson: Lesson, steps: int) -> Iterator[float]:
    """Losses, step by step."""
    pictures, generator = read_pictures(lesson.recipe), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(lesson.module.parameters(), lr=lesson.rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lesson.rate, total_steps=steps, pct_start=0.1)
    lesson.module.train()
    for _ in range(steps):
        loss = lesson.loss(augmented(pictures, generator))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(lesson.module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield float(loss.detach())
    lesson.module.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=LESSONS)
    parser.add_argument("--out", type=Path, default=GOLDEN)
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lesson = LESSONS[args.name]()
    print(sum(value.numel() for value in lesson.module.parameters()), "parameters", flush=True)
    for step, loss in enumerate(teach(lesson, args.steps or lesson.steps)):
        if step % 50 == 0:
            print(step, round(loss, 3), flush=True)
    lesson.save(args.out)


if __name__ == "__main__":
    main()
