"""What to look for in a picture: a text, examples, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from vtk.bundle import Label
from vtk.errors import UsageError
from vtk.segmenting.clicks import Clicks, box_in_picture, clicks_of
from vtk.segmenting.places import Box, Boxes, PointLabels, Points, boxes_of, items_of, points_of

if TYPE_CHECKING:
    from vtk.preprocess.geometry import Geometry

# What the official code asks for where there are boxes and no text.
VISUAL = "visual"
OBJECT = "object"
MAX_CHARACTERS = 1000
POSITIVE, NEGATIVE, UNUSED = 1, 0, -10


@dataclass(frozen=True)
class Prompt:
    """One kind of thing, of which every instance is found; or objects that are pointed at, one mask for each.

    text: a short noun phrase. boxes_xyxy: instances of it; negative_boxes_xyxy: what it is not. Boxes are left, top,
    right, bottom in pixels of the upright picture that is asked about, and are clipped to it. objects: these and no
    others; the text then only says what they are called. Lists and arrays are taken too, and kept as tuples. Raises
    UsageError for a prompt that asks for nothing and for boxes that are none.
    """

    text: str | None = None
    boxes_xyxy: tuple[Box, ...] = ()
    negative_boxes_xyxy: tuple[Box, ...] = ()
    objects: tuple[Clicks, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.text, str | None):
            raise UsageError(f"The text of a prompt is a text, got {type(self.text).__name__}.")
        object.__setattr__(self, "boxes_xyxy", boxes_of(self.boxes_xyxy))
        object.__setattr__(self, "negative_boxes_xyxy", boxes_of(self.negative_boxes_xyxy))
        object.__setattr__(self, "objects", _objects_of(self.objects))
        if self.text is None and not self.boxes_xyxy and not self.objects:
            raise UsageError("A prompt needs a text, a box around an example, or both; or points on an object.")
        if self.objects and self.num_boxes:
            raise UsageError("Examples show what to look for, and points which object is meant: ask one or the other.")
        if self.text is not None and not self.text.strip():
            raise UsageError("The text of a prompt is empty.", hint="Name what to look for, as in 'yellow bus'.")
        if self.text is not None and any("\ud800" <= char <= "\udfff" for char in self.text):
            raise UsageError("The text of a prompt holds bytes or halves of characters that are no text in UTF-8.")
        if len(self.text or "") > MAX_CHARACTERS:
            raise UsageError(f"The text of a prompt has {len(self.text or ''):,} characters, over {MAX_CHARACTERS:,}.")

    @property
    def name(self) -> str:
        """What results of it are called."""
        if self.text is None:
            return OBJECT if self.objects else VISUAL
        return " ".join(self.text.split())

    @property
    def num_boxes(self) -> int:
        return len(self.boxes_xyxy) + len(self.negative_boxes_xyxy)

    @property
    def is_of_one_picture(self) -> bool:
        """Whether it names places, which are those of one picture."""
        return bool(self.num_boxes or self.objects)


Prompts: TypeAlias = "str | Prompt | Sequence[str | Prompt]"


def prompts_asked(
    prompts: Prompts,
    *,
    boxes: Boxes = (),
    negative_boxes: Boxes = (),
    points: Points = (),
    point_labels: PointLabels | None = None,
) -> list[Prompt]:
    """One prompt or several, where boxes are those of the only one; or points on one object, perhaps with its box.

    Raises UsageError for nothing, for what does not go together, and for what are no prompts, boxes or points.
    """
    given = _prompts_of(prompts)
    examples, counterexamples, places = boxes_of(boxes), boxes_of(negative_boxes), points_of(points)
    if not places and point_labels is None:
        return _with_boxes(given, examples, counterexamples)
    if given:
        raise UsageError(
            "Prompts ask for all of a kind, and points for one object.", hint="Ask in two calls; the second is cheap."
        )
    if len(examples) > 1 or counterexamples:
        raise UsageError("With points, a box is the one around the object.", hint="Pass one box, or none.")
    return [Prompt(objects=(clicks_of(places, point_labels, examples[0] if examples else None),))]


def _prompts_of(prompts: Prompts) -> list[Prompt]:
    is_one = isinstance(prompts, str | Prompt | Clicks)
    given = (prompts,) if is_one else items_of(prompts, "Prompts are texts or Prompts in a list", None)
    if wrong := [item for item in given if not isinstance(item, str | Prompt)]:
        hint = "Pass Prompt(objects=(clicks,))." if isinstance(wrong[0], Clicks) else None
        raise UsageError(f"A prompt is a text or a Prompt, got {type(wrong[0]).__name__}.", hint=hint)
    return [item if isinstance(item, Prompt) else Prompt(str(item)) for item in given]


def _with_boxes(asked: list[Prompt], boxes: tuple[Box, ...], negative_boxes: tuple[Box, ...]) -> list[Prompt]:
    if boxes or negative_boxes:
        if len(asked) > 1 or any(prompt.is_of_one_picture for prompt in asked):
            raise UsageError("Boxes belong to one prompt.", hint="Pass Prompt(text, boxes_xyxy=…) for each.")
        return [Prompt(asked[0].text if asked else None, boxes, negative_boxes)]
    if not asked:
        raise UsageError("There is nothing to look for.", hint='Pass prompts=["yellow bus"], boxes, or points.')
    return asked


def _objects_of(objects: object) -> tuple[Clicks, ...]:
    given = items_of(objects, "The objects of a prompt are Clicks in a tuple", "Pass Prompt(objects=(clicks,)).")
    if wrong := [item for item in given if not isinstance(item, Clicks)]:
        raise UsageError(f"The objects of a prompt are Clicks, got {type(wrong[0]).__name__}.")
    return given


@dataclass(frozen=True, eq=False)
class BoxSlots:
    """The boxes of one prompt as the decoder takes them.

    boxes: (1, K, 4) float32, cxcywh in 0..1 of the network input. labels: (1, K) int64, 1 for an example, 0 for a
    counterexample, -10 for a slot that is not used.
    """

    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


def check_num_boxes(prompt: Prompt, count: int) -> None:
    """Raise UsageError for more than `count` boxes."""
    if prompt.num_boxes > count:
        raise UsageError(f"The prompt '{prompt.name}' has {prompt.num_boxes} boxes; this model takes up to {count}.")


def box_slots(prompt: Prompt, geometry: Geometry, count: int) -> BoxSlots:
    """Raises UsageError for more than `count` boxes and for a box outside of the picture."""
    check_num_boxes(prompt, count)
    boxes = np.zeros((1, count, 4), np.float32)
    labels = np.full((1, count), UNUSED, np.int64)
    examples = [(box, POSITIVE) for box in prompt.boxes_xyxy] + [(box, NEGATIVE) for box in prompt.negative_boxes_xyxy]
    for slot, (box, label) in enumerate(examples):
        boxes[0, slot], labels[0, slot] = _in_input(box, geometry), label
    return BoxSlots(boxes, labels)


def labels_of(names: Sequence[str]) -> tuple[Label, ...]:
    """Class i is prompt i; COCO counts from 1."""
    return tuple(Label(index + 1, name) for index, name in enumerate(names))


def _in_input(box: Box, geometry: Geometry) -> npt.NDArray[np.float64]:
    input_h, input_w = geometry.input_hw
    left, top, right, bottom = geometry.boxes_to_input(box_in_picture(box, geometry)) / (
        input_w,
        input_h,
        input_w,
        input_h,
    )
    return np.array([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top])
