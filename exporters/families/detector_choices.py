"""What the checkpoint of a DETR-like detector does not say, and what is taken for it."""

from __future__ import annotations

from vtk.errors import CheckpointError, UsageError
from vtk.exporters.families.coco import COCO_NAMES, NUM_COCO_CLASSES
from vtk.exporters.families.detector_infer import num_tokens, stored_points, trained_size
from vtk.exporters.families.detector_tensors import Tensors
from vtk.exporters.families.objects365 import NUM_OBJECTS365_CLASSES, OBJECTS365_NAMES
from vtk.exporters.family import Choice, FamilyOptions
from vtk.exporters.modules.dfine import COARSEST_STRIDE

DEFAULT_SIZE = (640, 640)
DEFAULT_QUERIES = 300

_DATASETS = {
    NUM_COCO_CLASSES: ("COCO", COCO_NAMES),
    NUM_OBJECTS365_CLASSES: ("Objects365", OBJECTS365_NAMES),
}


def input_size(
    tensors: Tensors, levels: int, options: FamilyOptions, *, stated: tuple[int, int] | None = None
) -> tuple[tuple[int, int], tuple[Choice, ...]]:
    """Height and width: as asked, else those of the anchors or `stated` beside the weights, else an assumed default.

    Raises UsageError for a size that does not fit the strides.
    """
    trained = trained_size(tensors, levels) or stated
    if options.size_hw is not None:
        height, width = options.size_hw
        if min(height, width) < COARSEST_STRIDE or height % COARSEST_STRIDE or width % COARSEST_STRIDE:
            raise UsageError(
                f"This model needs a height and width that are multiples of {COARSEST_STRIDE}, got {height},{width}.",
                hint="For example: --size 640,640",
            )
        return options.size_hw, ()
    if trained is not None:
        return trained, ()
    reason = "the checkpoint has no usable decoder.anchors; official configs use 640"
    value = ",".join(map(str, DEFAULT_SIZE))
    return DEFAULT_SIZE, (Choice("input size", value, "--size", ("H,W",), reason, assumed=True),)


def points(tensors: Tensors, taken: tuple[int, ...]) -> tuple[Choice, ...]:
    """Nothing to choose where the buffer tells; in a file whose buffers were averaged or damaged it may not."""
    if stored_points(tensors):
        return ()
    reason = "num_points_scale is not 1/n for each of n points; official configs have these. Other weights may tell"
    return (Choice("points per level", ",".join(map(str, taken)), "--weights", (), reason, assumed=True),)


def queries(
    levels: int,
    input_hw: tuple[int, int],
    options: FamilyOptions,
    *,
    official: int = DEFAULT_QUERIES,
    stated: object = None,
) -> Choice:
    """How many tokens become queries: as asked, else `stated` beside the weights, else `official`.

    Raises UsageError for more than there are, and CheckpointError for what is stated and no number.
    """
    if stated is not None and (not isinstance(stated, int) or stated < 1 or isinstance(stated, bool)):
        raise CheckpointError(f"config.json: num_queries is {str(stated)[:60]!r}; expected a number from 1.")
    tokens = num_tokens(input_hw, levels)
    asked = options.num_queries
    if asked is not None and not 1 <= asked <= tokens:
        raise UsageError(
            f"--num-queries must be in 1..{tokens}, the number of tokens at {input_hw[0]}x{input_hw[1]}, got {asked}."
        )
    if asked is not None:
        value, reason = asked, "as asked"
    elif stated is not None:
        value, reason = min(stated, tokens), "stated by config.json"
    else:
        value, reason = min(official, tokens), f"not in the checkpoint; official configs use {official}"
    assumed = asked is None and stated is None
    return Choice("queries", str(value), "--num-queries", (f"1..{tokens}",), reason, assumed)


def labels(classes: int, options: FamilyOptions) -> tuple[tuple[str, ...] | None, Choice]:
    """Class names, or None where nothing gives any. Raises UsageError when their number is wrong."""
    names, alternatives = options.class_names, ("FILE",)
    if names is not None:
        if len(names) != classes:
            raise UsageError(f"--labels has {len(names)} names, but the checkpoint has {classes} classes.")
        return names, Choice("labels", f"{len(names)} names", "--labels", alternatives, "as asked", assumed=False)
    if classes in _DATASETS:
        dataset, names = _DATASETS[classes]
        reason = f"names are not in the checkpoint; {classes} classes are most likely those of {dataset}"
        return names, Choice("labels", dataset, "--labels", alternatives, reason, assumed=True)
    reason = "names are not in the checkpoint"
    return None, Choice("labels", "class numbers", "--labels", alternatives, reason, assumed=True)
