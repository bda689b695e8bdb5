"""YOLOv8 detectors n, s, m, l, x and other widths and depths of the same structure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vtk.errors import CheckpointError, UnknownFamilyError, UsageError
from vtk.exporters.families.coco import COCO_CATEGORY_IDS, COCO_NAMES, NUM_COCO_CLASSES
from vtk.exporters.family import Choice, Family, FamilyOptions, ModelSpec, OutputSpec
from vtk.exporters.modules.yolov8 import C2F_BLOCKS, WIDTH_BLOCKS, YOLOv8Config, YOLOv8Export, YOLOv8Model
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vtk.exporters.checkpoint import Checkpoint

DEFAULT_SIZE = 640
STRIDE = 32
# With trained weights at 320 and 640, ONNX Runtime and OpenVINO were off by up to 9e-4 px and 3e-6. A box is the sum of
# 16 bins times the stride, so one limit for pixels and scores would be blind to wrong scores.
BOX_ATOL = 1e-2
SCORE_ATOL = 1e-4
# Widths and depths as in YOLOv8Config, from the published scaling table.
VARIANTS: Mapping[tuple[tuple[int, ...], tuple[int, ...]], str] = {
    ((16, 32, 64, 128, 256), (1, 2, 2, 1, 1, 1, 1, 1)): "n",
    ((32, 64, 128, 256, 512), (1, 2, 2, 1, 1, 1, 1, 1)): "s",
    ((48, 96, 192, 384, 576), (2, 4, 4, 2, 2, 2, 2, 2)): "m",
    ((64, 128, 256, 512, 512), (3, 6, 6, 3, 3, 3, 3, 3)): "l",
    ((80, 160, 320, 640, 640), (3, 6, 6, 3, 3, 3, 3, 3)): "x",
}

_CONV = r"(conv\.weight|bn\.(weight|bias|running_mean|running_var|num_batches_tracked))"
_GRAMMAR = re.compile(
    rf"model\.("
    rf"(0|1|3|5|7|16|19)\.{_CONV}"
    rf"|(2|4|6|8|12|15|18|21)\.(cv1|cv2|m\.\d+\.cv[12])\.{_CONV}"
    rf"|9\.cv[12]\.{_CONV}"
    rf"|22\.cv[23]\.[012]\.([01]\.{_CONV}|2\.(weight|bias))"
    rf"|22\.dfl\.conv\.weight)"
)
_SIGNATURE = ("model.0.conv.weight", "model.9.cv2.conv.weight", "model.22.cv3.2.2.weight", "model.22.dfl.conv.weight")


class YOLOv8(Family):
    """Recognized by the full grammar of its names, because other YOLO versions share most of them."""

    name = "yolov8"
    title = "YOLOv8 detection (n, s, m, l, x)"
    layouts = ("ultralytics",)
    ignorable = (r".*\.bn\.num_batches_tracked",)
    exact = True
    reads = ("class_names",)

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        """`ultralytics`, or None for tensors that are no YOLO model at all.

        Raises UnknownFamilyError, naming the first foreign tensor, for another YOLO version or task in this layout.
        """
        names = [canonical_name(name) for name in checkpoint.tensors]
        if "model.0.conv.weight" not in names or "model.0.bn.weight" not in names:
            return None
        foreign = [name for name in names if not _GRAMMAR.fullmatch(name)]
        missing = [name for name in _SIGNATURE if name not in names]
        if not foreign and not missing:
            return "ultralytics"
        reason = f"it holds '{foreign[0]}'" if foreign else f"it lacks '{missing[0]}'"
        raise UnknownFamilyError(
            f"{checkpoint.path.name} has the layout of an Ultralytics model but is no YOLOv8 detector: {reason}.",
            hint="Supported are YOLOv8 n, s, m, l, x for detection; other versions, segmentation, pose, oriented boxes "
            "and classification are not.",
        )

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        config = infer_config(
            {canonical_name(name): tuple(tensor.shape) for name, tensor in checkpoint.tensors.items()}
        )
        _check_strides(checkpoint.metadata.get("stride"))
        size, size_choice = _input_size(checkpoint.metadata, options)
        names, labels_choice = _labels(checkpoint.metadata.get("names"), config.num_classes, options)
        return ModelSpec(
            family=self.name,
            variant=VARIANTS.get((config.widths, config.depths), "custom"),
            layout=layout,
            task="detect",
            config=asdict(config),
            input_hw=size,
            recipe=Recipe(size_hw=size, resize="letterbox", interpolation="cv2_linear"),
            post=PostRecipe(kind="yolo", score_threshold=0.25, iou_threshold=0.7, max_detections=300),
            outputs=(OutputSpec("output0", "yolo", atol=BOX_ATOL, score_atol=SCORE_ATOL),),
            num_classes=config.num_classes,
            class_names=names,
            choices=(size_choice, labels_choice),
            fp32_islands=("softmax", "box_refinement"),
            extras={"category_ids": COCO_CATEGORY_IDS} if names == COCO_NAMES else {},
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, torch.Tensor]:
        return {canonical_name(name): tensor for name, tensor in checkpoint.tensors.items()}

    def build(self, spec: ModelSpec) -> nn.Module:
        return YOLOv8Model(YOLOv8Config(**spec.config)).eval()

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        return YOLOv8Export(module, spec.input_hw).eval()


def canonical_name(name: str) -> str:
    """`model.N...` for the names of a DetectionModel, of the layer list in it, and of the YOLO object around it."""
    return "model." + re.sub(r"^(model\.)+", "", name)


def infer_config(shapes: Mapping[str, tuple[int, ...]]) -> YOLOv8Config:
    """From the shapes of canonical names. Raises CheckpointError where they contradict."""
    reg_max = _shape(shapes, "model.22.dfl.conv.weight")[1]
    box_rows = _shape(shapes, "model.22.cv2.0.2.weight")[0]
    if box_rows != 4 * reg_max:
        raise CheckpointError(f"The box branch has {box_rows} rows, but {reg_max} bins need {4 * reg_max}.")
    w0, w1, w2, w3, w4 = (_shape(shapes, f"model.{block}.conv.weight")[0] for block in WIDTH_BLOCKS)
    return YOLOv8Config(
        widths=(w0, w1, w2, w3, w4),
        depths=tuple(_depth(shapes, block) for block in C2F_BLOCKS),
        num_classes=_shape(shapes, "model.22.cv3.0.2.weight")[0],
        box_channels=_shape(shapes, "model.22.cv2.0.0.conv.weight")[0],
        class_channels=_shape(shapes, "model.22.cv3.0.0.conv.weight")[0],
        reg_max=reg_max,
    )


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, ...]:
    shape = shapes.get(name, ())
    if len(shape) != 4 or min(shape) < 1:
        raise CheckpointError(
            f"'{name}' must be the weight of a 2-D convolution, the checkpoint has {shape or 'none'}."
        )
    return shape


def _depth(shapes: Mapping[str, tuple[int, ...]], block: int) -> int:
    pattern = re.compile(rf"model\.{block}\.m\.(\d+)\.cv1\.conv\.weight")
    return len({match[1] for name in shapes if (match := pattern.fullmatch(name))})


def _check_strides(stride: Any) -> None:
    if stride is not None and stride not in ([8, 16, 32], [STRIDE], STRIDE):
        raise CheckpointError(f"The checkpoint states the strides {stride}, but its tensors are of strides 8, 16, 32.")


def _input_size(metadata: Mapping[str, Any], options: FamilyOptions) -> tuple[tuple[int, int], Choice]:
    trained = _trained_size(metadata)
    if options.size_hw is not None:
        size, reason = options.size_hw, "as asked"
    elif trained is not None:
        size, reason = trained, "the size of its training"
    else:
        size, reason = (DEFAULT_SIZE, DEFAULT_SIZE), "not in the checkpoint; released models are trained at 640"
    _check_size(size)
    value, assumed = f"{size[0]},{size[1]}", options.size_hw is None and trained is None
    return size, Choice("input size", value, "--size", (f"H,W in multiples of {STRIDE}",), reason, assumed)


def _trained_size(metadata: Mapping[str, Any]) -> tuple[int, int] | None:
    """`imgsz` of the training arguments in an Ultralytics file, which trains on squares; None where it is not told."""
    arguments = metadata.get("train_args")
    size = arguments.get("imgsz") if isinstance(arguments, Mapping) else None
    return (size, size) if isinstance(size, int) and size >= STRIDE and size % STRIDE == 0 else None


def _check_size(size_hw: tuple[int, int]) -> None:
    if any(side < STRIDE or side % STRIDE for side in size_hw):
        fitting = ",".join(str(max(STRIDE, round(side / STRIDE) * STRIDE)) for side in size_hw)
        raise UsageError(
            f"YOLOv8 needs a height and width that are multiples of {STRIDE}, got {size_hw[0]},{size_hw[1]}.",
            hint=f"For example: --size {fitting}",
        )


def _labels(stored: Any, num_classes: int, options: FamilyOptions) -> tuple[tuple[str, ...] | None, Choice]:
    """--labels, else the names in the checkpoint, else those of COCO where the class count is its own."""
    if options.class_names is not None:
        if len(options.class_names) != num_classes:
            raise UsageError(f"--labels has {len(options.class_names)} names, but the model has {num_classes} classes.")
        return options.class_names, _labels_choice(f"{num_classes} names", "as asked", assumed=False)
    if isinstance(stored, (Mapping, list)):
        names = stored_names(stored, num_classes)
        return names, _labels_choice(f"{num_classes} names", "in the checkpoint", assumed=False)
    if num_classes == NUM_COCO_CLASSES:
        reason = "names are not in the checkpoint; 80 classes are most likely those of COCO"
        return COCO_NAMES, _labels_choice("COCO", reason, assumed=True)
    return None, _labels_choice("class numbers", "names are not in the checkpoint", assumed=True)


def _labels_choice(value: str, reason: str, *, assumed: bool) -> Choice:
    return Choice("labels", value, "--labels", ("FILE",), reason, assumed)


def stored_names(stored: Mapping[Any, Any] | list[Any], num_classes: int) -> tuple[str, ...]:
    """Class names by index from what Ultralytics stores: a list, or a mapping from index that JSON gave string keys."""
    items = stored.items() if isinstance(stored, Mapping) else enumerate(stored)
    by_index = {str(index): str(name) for index, name in items}
    if set(by_index) != {str(index) for index in range(num_classes)}:
        raise CheckpointError(
            f"The checkpoint holds names for the classes {', '.join(by_index) or '(none)'}, but its model has "
            f"{num_classes} classes.",
            hint="Pass the right names with --labels FILE.",
        )
    return tuple(by_index[str(index)] for index in range(num_classes))
