"""All families, in the order in which they are asked."""

from __future__ import annotations

import re
from importlib import import_module

from vtk.errors import UnknownFamilyError, UsageError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import Family, FamilyOptions, ModelSpec

_FAMILIES = (
    "vtk.exporters.families.timm_any:TimmModel",  # first: it only answers when the user names a timm model
    "vtk.exporters.families.dinov3_vit:DINOv3ViT",
    "vtk.exporters.families.dinov3_convnext:DINOv3ConvNext",
    "vtk.exporters.families.dinov2:DINOv2",
    "vtk.exporters.families.dfine:DFine",
    "vtk.exporters.families.deimv2:DEIMv2",
    "vtk.exporters.families.rtdetrv2:RTDetrV2",
    "vtk.exporters.families.rfdetr:RFDetr",
    "vtk.exporters.families.yolov8:YOLOv8",
    "vtk.exporters.families.sam3:SAM3",
)

# Files that users are likely to try, told apart by the start of a name that only they have.
_NOT_YET = (
    (r"sam_mask_decoder\.", "SAM 2"),
    (r"segmentation_(head\.blocks|bias)", "RF-DETR with masks"),
    (r"model\.conv_encoder\.spatial_tuning_adapter\.", "DEIMv2 as transformers stores it"),
)

# Options that only some families read (`Family.reads`), and the flags that set them.
_FLAGS = {
    "timm_name": "--timm-name",
    "pretrain_data": "--pretrain-data",
    "num_queries": "--num-queries",
    "feature_blocks": "--feature-blocks",
    "class_names": "--labels",
    "head": "--head",
}


def all_families() -> tuple[Family, ...]:
    """One instance of each registered family."""
    return tuple(_load(path) for path in _FAMILIES)


def _load(path: str) -> Family:
    module, _, name = path.partition(":")
    family: Family = getattr(import_module(module), name)()
    return family


def identify(checkpoint: Checkpoint, options: FamilyOptions) -> tuple[Family, ModelSpec]:
    """What a checkpoint is, completely.

    Raises the errors of `recognize` and `Family.infer`, and UsageError for an option that the family does not read.
    """
    family, layout = recognize(checkpoint, options)
    for name, flag in _FLAGS.items():
        if getattr(options, name) is not None and name not in family.reads:
            raise UsageError(f"{flag} means nothing for {family.title}.", hint=f"Leave out {flag}.")
    return family, family.infer(checkpoint, layout, options)


def recognize(checkpoint: Checkpoint, options: FamilyOptions) -> tuple[Family, str]:
    """The family and layout of a checkpoint.

    `options.family` (from --family) restricts the question to that name or alias. Raises UsageError for a name that
    does not exist and UnknownFamilyError, listing the supported families, when nothing matches.
    """
    candidates, family = all_families(), options.family
    if family is not None:
        known = sorted({name for item in candidates for name in (item.name, *item.aliases)})
        candidates = tuple(item for item in candidates if family in (item.name, *item.aliases))
        if not candidates:
            raise UsageError(f"Unknown family '{family}'.", hint=f"Supported: {', '.join(known)}.")
    for item in candidates:
        layout = item.recognize(checkpoint, options)
        if layout is not None:
            return item, layout
    raise _unknown(checkpoint, family)


def _unknown(checkpoint: Checkpoint, asked: str | None) -> UnknownFamilyError:
    names = list(checkpoint.tensors)
    later = next((title for pattern, title in _NOT_YET if any(re.match(pattern, name) for name in names)), None)
    if later is not None and asked is None:
        what = f"{checkpoint.path.name} looks like {later}, which vtk does not support yet"
    else:
        tried = f" as '{asked}'" if asked else ""
        what = f"{checkpoint.path.name}: {len(names)} tensors ({', '.join(names[:3])}, …) are not recognized{tried}"
    supported = "; ".join(item.title for item in all_families())
    return UnknownFamilyError(
        f"{what}.", hint=f"Supported families: {supported}. For another timm model pass --timm-name NAME."
    )
