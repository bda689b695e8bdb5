"""What a client may ask of the vision routes; the field descriptions are those of the API's own description."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from vtk.segmenting.prompts import MAX_CHARACTERS

Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10_000)]
ClassId = Annotated[int, Field(ge=0, lt=1_000_000)]
ClassName = Annotated[str, Field(min_length=1, max_length=256)]
PromptText = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
# strict, since a form's values are JSON as well: neither text nor true is a number
Pixels = Annotated[float, Field(strict=True)]
Box = tuple[Pixels, Pixels, Pixels, Pixels]
Point = tuple[Pixels, Pixels]
PointLabel = Annotated[int, Field(strict=True, ge=0, le=1)]

MAX_PROMPTS = 32
MAX_BOXES = 64  # of one prompt; a model may take fewer
MAX_POINTS = 64  # on one object; a model may take fewer

_CLASSES = "Report these only: names, or class ids as in the answer."


class PictureUrl(BaseModel):
    """A picture by its address."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(description="A data URL, or http(s) where the server was started with --allow-url-fetch.")


class PromptFields(BaseModel):
    """What to look for: a text, boxes around examples, or both; boxes are for requests with one picture."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    text: str | None = Field(None, min_length=1, max_length=MAX_CHARACTERS, description="A short noun phrase.")
    boxes_xyxy: list[Box] = Field(
        [],
        fail_fast=True,
        max_length=MAX_BOXES,
        description="Examples: left, top, right, bottom in pixels of the upright picture.",
    )
    negative_boxes_xyxy: list[Box] = Field(
        [], fail_fast=True, max_length=MAX_BOXES, description="What is not meant, in the same form."
    )


# Which of the two it is follows from its type, so that a complaint is about the right one.
_BY_TYPE = Discriminator(lambda value: "object" if isinstance(value, (dict, BaseModel)) else "text")
AnyPicture = Annotated[Annotated[str, Tag("text")] | Annotated[PictureUrl, Tag("object")], _BY_TYPE]
AnyPrompt = Annotated[Annotated[PromptText, Tag("text")] | Annotated[PromptFields, Tag("object")], _BY_TYPE]
# Fields that list such items, with what an object among them holds.
OBJECTS: dict[str, type[BaseModel]] = {"images": PictureUrl, "prompts": PromptFields}


class VisionOptions(BaseModel):
    """What all tasks share. Pictures of a form come as files and are not in here."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    images: list[AnyPicture] = Field([], fail_fast=True, description='Each base64, a data URL, or {"url": "…"}.')
    model: str | None = Field(
        None, max_length=256, description="NAME or NAME/VERSION; may be left out where one served model has the task."
    )
    priority: int = Field(0, ge=-1_000_000, le=1_000_000, description="Lower values are served first.")
    timeout_ms: float | None = Field(
        None, gt=0, le=86_400_000, description="Pictures that would be answered later are refused instead."
    )


class DetectOptions(VisionOptions):
    """Boxes."""

    score_threshold: Fraction | None = Field(None, description="Keep scores above it; the model's own by default.")
    iou_threshold: Fraction | None = Field(None, description="Of the NMS, for models that have one.")
    max_detections: Count | None = Field(
        None, description="At most this many boxes per picture, or per prompt, the best."
    )
    classes: list[ClassId | ClassName] | None = Field(
        None, min_length=1, max_length=10_000, fail_fast=True, description=_CLASSES
    )
    response: Literal["json", "annotated"] = Field(
        "json", description="annotated: the picture with its boxes; for several pictures as base64 in the JSON."
    )


class SegmentOptions(DetectOptions):
    """Boxes and masks."""

    prompts: list[AnyPrompt] = Field(
        [],
        fail_fast=True,
        max_length=MAX_PROMPTS,
        description="For models that are prompted: texts, or objects with text and boxes; class i is prompt i. In a "
        "form each is a field, an object as JSON.",
    )
    points: list[Point] = Field(
        [],
        fail_fast=True,
        max_length=MAX_POINTS,
        description="For SAM3 with its tracker: x, y in pixels of the upright picture, on one object or beside it; the "
        "answer is its mask. In a form one JSON list.",
    )
    point_labels: list[PointLabel] | None = Field(
        None,
        fail_fast=True,
        max_length=MAX_POINTS,
        description="For each point: 1 on the object, as all are by default, or 0 beside it. In a form one JSON list.",
    )
    box_xyxy: Box | None = Field(
        None, description="A box around the object, beside points or alone. In a form one JSON list."
    )


class EmbedOptions(VisionOptions):
    """Vectors."""

    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64: little-endian float32, as OpenAI's embeddings."
    )


class ClassifyOptions(VisionOptions):
    """Classes of whole pictures."""

    top_k: Count | None = Field(None, description="List this many classes.")
    classes: list[ClassId | ClassName] | None = Field(
        None, min_length=1, max_length=10_000, fail_fast=True, description=_CLASSES
    )
