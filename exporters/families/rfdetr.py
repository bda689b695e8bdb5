"""RF-DETR (nano to large): a windowed DINOv2 before a light deformable decoder."""

from __future__ import annotations

import torch
from torch import nn

from vtk.errors import UsageError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families.coco import COCO_CATEGORY_IDS, COCO_NAMES
from vtk.exporters.families.detector_spec import detector_spec
from vtk.exporters.families.detector_tensors import rows
from vtk.exporters.families.rfdetr_facts import RFDetrFacts, read_facts
from vtk.exporters.families.rfdetr_infer import RFDetrConfig, build_model, infer_config
from vtk.exporters.families.rfdetr_keys import from_any, naming
from vtk.exporters.family import Choice, Family, FamilyOptions, ModelSpec
from vtk.exporters.modules.dino_keys import on_meta
from vtk.exporters.modules.rfdetr import RFDetrDetector, RFDetrModel
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

# The head of the published models has one output per COCO category id, 0 to 90.
NUM_COCO_IDS = COCO_CATEGORY_IDS[-1] + 1


class RFDetr(Family):
    """Official checkpoints, and those that transformers writes, which have the same names beside a config.json."""

    name = "rfdetr"
    title = "RF-DETR"
    layouts = ("official", "huggingface")
    exact = True
    reads = ("class_names",)
    ignorable = (r".*\.num_points_scale",)
    unused = (r"vit\.mask_token",)

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        found = naming(checkpoint.tensors)
        if found is None:
            return None
        return "huggingface" if found == "in memory" or "config" in checkpoint.metadata else "official"

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        tensors = from_any(on_meta(checkpoint.tensors))
        facts = read_facts(checkpoint, rows(tensors, "class_embed.weight"))
        config = infer_config(tensors, facts)
        side, size_choices = _input_side(config, facts, options)
        names, labels = _labels(config, facts, options)
        return detector_spec(
            self.name,
            variant=f"RF-DETR {config.published[0]}" if config.published else "RF-DETR custom",
            layout=layout,
            config=config.to_json(),
            recipe=Recipe(size_hw=(side, side), mean=IMAGENET_MEAN, std=IMAGENET_STD),
            queries=config.queries,
            classes=config.classes,
            names=names,
            choices=(*size_choices, *_structure(config, facts), labels),
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, torch.Tensor]:
        return from_any(checkpoint.tensors)

    def build(self, spec: ModelSpec) -> nn.Module:
        config = RFDetrConfig.from_json(spec.config)
        return build_model(config, grid=spec.input_hw[0] // config.patch)

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        assert isinstance(module, RFDetrModel)
        config = RFDetrConfig.from_json(spec.config)
        grid = spec.input_hw[0] // config.patch
        return RFDetrDetector(module, grid=grid, windows=config.windows, after=config.after).eval()


def _input_side(config: RFDetrConfig, facts: RFDetrFacts, options: FamilyOptions) -> tuple[int, tuple[Choice, ...]]:
    """As asked, as trained, as published, or that of the position table. Raises UsageError for one that cannot hold."""
    choices: tuple[Choice, ...] = ()
    if options.size_hw is not None:
        side = _asked_side(config, options.size_hw)
    elif facts.side is not None and facts.side % config.multiple == 0:
        side = facts.side
    elif config.published is not None:
        side = config.published[1]
    else:
        side = _example(config)
        reason = "nothing says the size; the position table fits this one"
        choices = (Choice("input size", f"{side},{side}", "--size", ("S,S",), reason, assumed=True),)
    _check_tokens(config, side)
    return side, choices


def _asked_side(config: RFDetrConfig, size_hw: tuple[int, int]) -> int:
    height, width = size_hw
    if height != width or height < config.multiple or height % config.multiple:
        raise UsageError(
            f"RF-DETR takes square pictures whose side is a multiple of {config.multiple} (patch x windows).",
            hint=f"For example: --size {_example(config)},{_example(config)}.",
        )
    return height


def _example(config: RFDetrConfig) -> int:
    """The size that the position table fits, brought to a multiple that windows can divide."""
    return max(round(config.position_side / config.windows), 1) * config.multiple


def _check_tokens(config: RFDetrConfig, side: int) -> None:
    grid = side // config.patch
    tokens = sum(round(grid * scale) ** 2 for scale in config.scales)
    if config.queries > tokens:
        raise UsageError(
            f"At {side}x{side} RF-DETR has {tokens} tokens, fewer than its {config.queries} queries.",
            hint="Give a larger --size.",
        )


def _structure(config: RFDetrConfig, facts: RFDetrFacts) -> tuple[Choice, ...]:
    """Windows, maps and heads leave no trace in the tensors."""
    known = facts.windows is not None and facts.after is not None and facts.cross_heads is not None
    if known or config.published is not None:
        return ()
    value = f"{config.windows} x {config.windows} windows, maps after blocks {', '.join(map(str, config.after))}"
    reason = "not in the tensors; all published detectors with this patch size have these"
    return (Choice("backbone windows", value, "config.json beside the weights", (), reason, assumed=True),)


def _labels(config: RFDetrConfig, facts: RFDetrFacts, options: FamilyOptions) -> tuple[tuple[str, ...] | None, Choice]:
    names, reason, assumed = _name_classes(config.classes, facts, options)
    value = "class numbers" if names is None else f"{len(names)} names"
    return names, Choice("labels", value, "--labels", ("FILE",), reason, assumed)


def _name_classes(classes: int, facts: RFDetrFacts, options: FamilyOptions) -> tuple[tuple[str, ...] | None, str, bool]:
    """Names, why these, and whether they are assumed. Raises UsageError for a wrong number of --labels."""
    asked = options.class_names
    if asked is not None and len(asked) != classes:
        raise UsageError(f"--labels has {len(asked)} names, but the checkpoint has {classes} classes.")
    if asked is not None:
        return asked, "as asked", False
    if facts.names:
        return _fill(dict(facts.names), classes), f"stated by {facts.source}", False
    if classes == NUM_COCO_IDS:
        reason = "names are not in the checkpoint; 91 classes are most likely COCO's category ids, 0 to 90"
        return _fill(dict(zip(COCO_CATEGORY_IDS, COCO_NAMES, strict=True)), classes), reason, True
    return None, "names are not in the checkpoint", True


def _fill(named: dict[int, str], classes: int) -> tuple[str, ...]:
    """One name per class: COCO leaves ids out, and the first may be a root category that nothing is labeled with."""
    return tuple(named.get(index, f"unused {index}") for index in range(classes))
