"""Which model answers, and what of the request its recipe can follow."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from vtk.bundle import Label
from vtk.errors import UnavailableError, UsageError
from vtk.postprocess.recipe import PostRecipe
from vtk.segmenting.clicks import clicks_of
from vtk.segmenting.prompts import Prompt
from vtk.server.vision.options import ClassifyOptions, DetectOptions, PromptFields, SegmentOptions, VisionOptions

if TYPE_CHECKING:
    from vtk.runtime import Runtime
    from vtk.serving.vision_model import VisionModel

T = TypeVar("T")


@contextmanager
def lease_model(runtime: Runtime, asked: str | None, task: str) -> Iterator[VisionModel]:
    """The model named `asked` (NAME or NAME/VERSION), or the one served model that does `task`.

    Raises UsageError when it does something else, or when none or several do the task; NotFoundError for an unknown
    name; UnavailableError for a model that is not ready.
    """
    name, _, version = (asked or _only_model(runtime, task)).partition("/")
    with runtime.vision(name, version or None) as model:
        does = str(model.bundle.manifest.task)
        if does != task:
            raise UsageError(f"The model '{name}' does {does}, not {task}.", hint=f"POST to /v1/vision/{does} instead.")
        yield model


def recipe_for(options: VisionOptions, post: PostRecipe, model: str) -> PostRecipe:
    """The bundle's recipe with what the request changes. Raises UsageError for an option that would do nothing."""
    if isinstance(options, ClassifyOptions):
        return replace(post, top_k=_given(options.top_k, post.top_k))
    if not isinstance(options, DetectOptions):
        return post
    if options.iou_threshold is not None and post.kind != "yolo":
        raise UsageError(
            f"The model '{model}' finds each object once and has no NMS, so iou_threshold would do nothing.",
            hint="Leave it out.",
        )
    return replace(
        post,
        score_threshold=_given(options.score_threshold, post.score_threshold),
        iou_threshold=_given(options.iou_threshold, post.iou_threshold),
        max_detections=_given(options.max_detections, post.max_detections),
    )


def prompts_of(options: VisionOptions, post: PostRecipe, model: str, num_pictures: int) -> tuple[Prompt, ...]:
    """What a promptable model is asked; nothing for others.

    Raises UsageError for prompts that are missing, cannot be, or would do nothing.
    """
    if not isinstance(options, SegmentOptions):
        return ()
    is_pointed = bool(options.points) or options.point_labels is not None or options.box_xyxy is not None
    if post.kind != "segment":
        if options.prompts or is_pointed:
            raise UsageError(f"The model '{model}' takes no prompts: it finds its own classes.", hint="Leave them out.")
        return ()
    if not options.prompts and not is_pointed:
        raise UsageError(
            f"The model '{model}' finds what it is prompted for.", hint="Say what to look for: prompts, or points."
        )
    if options.classes is not None:
        raise UsageError("The classes of a promptable model are its prompts.", hint="Leave classes out.")
    prompts = tuple(_prompt(prompt) for prompt in options.prompts)
    if is_pointed:
        prompts += (Prompt(objects=(clicks_of(options.points, options.point_labels, options.box_xyxy),)),)
    if num_pictures > 1 and any(prompt.is_of_one_picture for prompt in prompts):
        raise UsageError("Places are pixels of one picture; the request has several.", hint="Send a request for each.")
    return prompts


def _prompt(given: str | PromptFields) -> Prompt:
    if isinstance(given, str):
        return Prompt(given)
    return Prompt(given.text, tuple(given.boxes_xyxy), tuple(given.negative_boxes_xyxy))


def class_filter(options: VisionOptions, labels: Sequence[Label]) -> frozenset[int] | None:
    """Class indices of the `classes` asked for; None for all. Raises UsageError for one that the model has not."""
    if not isinstance(options, (DetectOptions, ClassifyOptions)) or options.classes is None:
        return None
    return frozenset(index for asked in options.classes for index in _indices(asked, labels))


def _indices(asked: int | str, labels: Sequence[Label]) -> list[int]:
    """Of one class; a name that several classes share means all of them. Forms send ids as text."""
    if isinstance(asked, str):
        if found := [index for index, label in enumerate(labels) if label.name == asked]:
            return found
        if not (asked.isascii() and asked.isdigit()):
            raise _unknown_class(asked, labels)
    index = int(asked)
    if index >= len(labels):
        raise UsageError(f"There is no class {asked}; class ids go from 0 to {len(labels) - 1}.")
    return [index]


def _unknown_class(asked: str, labels: Sequence[Label]) -> UsageError:
    near = difflib.get_close_matches(asked, [label.name for label in labels], n=3)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Its classes start with {labels[0].name}."
    return UsageError(f"The model has no class '{asked[:100]}'.", hint=hint)


def _only_model(runtime: Runtime, task: str) -> str:
    statuses = [status for status in runtime.statuses() if status.kind == "vision"]
    able = [status for status in statuses if status.task == task]
    ready = sorted({status.name for status in able if status.state == "ready"})
    if len(ready) == 1:
        return ready[0]
    if ready:
        raise UsageError(f"Several served models do {task}: {', '.join(ready)}.", hint="Say which one as 'model'.")
    if any(status.state == "loading" for status in able):
        raise UnavailableError(f"The model that does {task} is still loading.")
    served = ", ".join(f"{status.name} ({status.task})" for status in statuses if status.state == "ready")
    raise UsageError(f"No served model does {task}.", hint=f"Served for pictures: {served or 'none'}.")


def _given(value: T | None, default: T) -> T:
    return default if value is None else value
