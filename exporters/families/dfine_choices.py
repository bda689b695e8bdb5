"""What a D-FINE or DEIM checkpoint does not say, and what is taken for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vtk.errors import UsageError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families.coco import COCO_NAMES, NUM_COCO_CLASSES
from vtk.exporters.families.dfine_config import DFineConfig
from vtk.exporters.families.dfine_infer import stored_points, trained_size
from vtk.exporters.family import Choice, FamilyOptions
from vtk.exporters.modules.dfine import COARSEST_STRIDE

DEFAULT_SIZE = (640, 640)
DEFAULT_QUERIES = 300

ACTIVATIONS = {"dfine": "relu", "deim": "silu"}


def reading(checkpoint: Checkpoint, config: DFineConfig, options: FamilyOptions) -> Choice:
    """ReLU or SiLU leaves no trace in names and shapes; only L and X differ, in the backbone's norm counters."""
    value, reason, assumed = _evidence(checkpoint, config, options)
    return Choice("activation family", value, "--family", tuple(ACTIVATIONS), reason, assumed)


def _evidence(checkpoint: Checkpoint, config: DFineConfig, options: FamilyOptions) -> tuple[str, str, bool]:
    if options.family in ACTIVATIONS:
        return options.family, "as asked", False
    if config.variant in ("L", "X") and config.frozen_bn is not None:
        if config.frozen_bn:
            return "dfine", "the backbone norms are frozen, as in the official D-FINE L and X configs", False
        return "deim", "the backbone norms have step counters, as in the official DEIM L and X configs", False
    same = "D-FINE (ReLU) and DEIM (SiLU) checkpoints have the same names and shapes, and the other gives wrong boxes"
    file_name = checkpoint.path.name.lower()
    if "deim" in file_name:
        return "deim", f"{same}; the file name says DEIM", True
    return "dfine", f"{same}; nothing says DEIM", True


def input_size(
    tensors: Mapping[str, torch.Tensor], config: DFineConfig, options: FamilyOptions
) -> tuple[tuple[int, int], tuple[Choice, ...]]:
    """Height and width: as asked, else those of the anchors, else an assumed default. Raises UsageError."""
    trained = trained_size(tensors, config)
    if options.size_hw is not None:
        height, width = options.size_hw
        if min(height, width) < COARSEST_STRIDE or height % COARSEST_STRIDE or width % COARSEST_STRIDE:
            raise UsageError(
                f"{config.variant} models need a height and width that are multiples of {COARSEST_STRIDE}, "
                f"got {height},{width}.",
                hint="For example: --size 640,640",
            )
        return options.size_hw, ()
    if trained is not None:
        return trained, ()
    reason = "the checkpoint has no usable decoder.anchors; official configs use 640"
    value = ",".join(map(str, DEFAULT_SIZE))
    return DEFAULT_SIZE, (Choice("input size", value, "--size", ("H,W",), reason, assumed=True),)


def points(tensors: Mapping[str, torch.Tensor], config: DFineConfig) -> tuple[Choice, ...]:
    """Nothing to choose where the buffer tells; in a file whose buffers were averaged or damaged it may not."""
    if stored_points(tensors):
        return ()
    reason = "num_points_scale is not 1/n for each of n points; official configs have these. Other weights may tell"
    return (Choice("points per level", ",".join(map(str, config.points)), "--weights", (), reason, assumed=True),)


def queries(config: DFineConfig, input_hw: tuple[int, int], options: FamilyOptions) -> Choice:
    """How many tokens become queries. Raises UsageError for more than there are."""
    tokens = config.num_tokens(input_hw)
    asked = options.num_queries
    if asked is not None and not 1 <= asked <= tokens:
        raise UsageError(
            f"--num-queries must be in 1..{tokens}, the number of tokens at {input_hw[0]}x{input_hw[1]}, got {asked}."
        )
    value = min(DEFAULT_QUERIES, tokens) if asked is None else asked
    reason = "as asked" if asked is not None else f"not in the checkpoint; official configs use {DEFAULT_QUERIES}"
    return Choice("queries", str(value), "--num-queries", (f"1..{tokens}",), reason, assumed=asked is None)


def labels(config: DFineConfig, options: FamilyOptions) -> tuple[tuple[str, ...] | None, Choice]:
    """Class names, or None where nothing gives any. Raises UsageError when their number is wrong."""
    names, alternatives = options.class_names, ("FILE",)
    if names is not None:
        if len(names) != config.classes:
            raise UsageError(f"--labels has {len(names)} names, but the checkpoint has {config.classes} classes.")
        return names, Choice("labels", f"{len(names)} names", "--labels", alternatives, "as asked", assumed=False)
    if config.classes == NUM_COCO_CLASSES:
        reason = "names are not in the checkpoint; 80 classes are most likely those of COCO"
        return COCO_NAMES, Choice("labels", "COCO", "--labels", alternatives, reason, assumed=True)
    reason = "names are not in the checkpoint"
    return None, Choice("labels", "class numbers", "--labels", alternatives, reason, assumed=True)
