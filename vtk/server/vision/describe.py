"""The vision routes in the API description: requests, which are read by hand, and answers, which are plain data."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from vtk.server.vision.options import VisionOptions

SUMMARIES = {
    "detect": "Objects in pictures, as boxes with class and score",
    "segment": "Objects in pictures, as boxes and masks",
    "embed": "One vector per picture",
    "classify": "The likeliest classes of each picture",
}


class PictureError(BaseModel):
    """Why one picture has no result; `reason` is there for pictures that cannot be read."""

    message: str
    type: str
    param: str | None
    code: str
    reason: str | None = None


class PictureAnswer(BaseModel):
    """One picture: either `error`, or the rest. width, height: upright pixels. seconds: by stage."""

    index: int
    error: PictureError | None = None
    width: int | None = None
    height: int | None = None
    seconds: dict[str, float] | None = None


class NamedScore(BaseModel):
    """class_id: index of the class in the model. category_id: its number in COCO files."""

    class_id: int
    category_id: int
    name: str
    score: float


class Detection(NamedScore):
    """A box: left, top, right, bottom in pixels of the upright picture, not clipped to it by every model."""

    bbox_xyxy: tuple[float, float, float, float]


class RunLengths(BaseModel):
    """A mask as COCO has it. size: height and width of the upright picture. counts: compressed run lengths."""

    size: tuple[int, int]
    counts: str


class Segment(Detection):
    """A box and its mask."""

    segmentation: RunLengths | None = None


class Annotated(BaseModel):
    """A picture with its boxes drawn."""

    media_type: str
    base64: str


class PictureDetections(PictureAnswer):
    """Best first."""

    detections: list[Detection] | None = None
    annotated: Annotated | None = None


class PictureSegments(PictureAnswer):
    """Best first; `class_id` is the number of the prompt."""

    detections: list[Segment] | None = None
    annotated: Annotated | None = None


class PictureEmbedding(PictureAnswer):
    """embedding: `dim` numbers, or base64 of them as little-endian float32. grid_hw: of the model's dense features."""

    dim: int | None = None
    grid_hw: tuple[int, int] | None = None
    embedding: list[float] | str | None = None


class PictureClasses(PictureAnswer):
    """Best first."""

    classes: list[NamedScore] | None = None


class VisionAnswer(BaseModel):
    """What all tasks share; `error` is there when no picture was answered. seconds: from request to answer."""

    model: str
    version: str
    task: str
    seconds: float
    error: PictureError | None = None


class DetectAnswer(VisionAnswer):
    """One result per picture, in their order."""

    results: list[PictureDetections]


class SegmentAnswer(VisionAnswer):
    """One result per picture, in their order."""

    results: list[PictureSegments]


class EmbedAnswer(VisionAnswer):
    """One result per picture, in their order."""

    results: list[PictureEmbedding]


class ClassifyAnswer(VisionAnswer):
    """One result per picture, in their order."""

    results: list[PictureClasses]


class Refusal(BaseModel):
    """The whole request was refused, or none of its pictures was answered (then with `results` as above)."""

    error: PictureError


ANSWERS: dict[str, type[VisionAnswer]] = {
    "detect": DetectAnswer,
    "segment": SegmentAnswer,
    "embed": EmbedAnswer,
    "classify": ClassifyAnswer,
}
_REFUSALS = {
    400: "The request or each of its pictures cannot be used.",
    401: "No valid API key.",
    403: "Not from this origin.",
    404: "No such model.",
    408: "The body stopped coming, or the deadline passed.",
    413: "The body is too large.",
    429: "Too much is waiting; see Retry-After.",
    500: "The model failed.",
    503: "Starting, draining or unloaded.",
}


def responses(task: str) -> dict[int | str, dict[str, Any]]:
    """By status, as FastAPI takes them."""
    drawings: dict[str, Any] = {"image/png": {}, "image/jpeg": {}} if task in ("detect", "segment") else {}
    answered = {"model": ANSWERS[task], "description": "At least one picture was answered.", "content": drawings}
    return {200: answered, **{code: {"model": Refusal, "description": text} for code, text in _REFUSALS.items()}}


def request_body(kind: type[VisionOptions]) -> dict[str, Any]:
    """OpenAPI's description of the two forms in which the options of `kind` and pictures come."""
    schema = _inlined(kind.model_json_schema())
    images = schema["properties"]["images"]
    as_json = {**schema, "properties": {**schema["properties"], "images": {**images, "minItems": 1}}}
    files = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
    as_form = {**schema, "properties": {**schema["properties"], "images": files}}
    content = {"application/json": as_json, "multipart/form-data": as_form}
    return {
        "required": True,
        "content": {name: {"schema": {**one, "required": ["images"]}} for name, one in content.items()},
    }


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without references, which would point into the description that it becomes part of."""
    definitions = schema.get("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return resolve(definitions[node["$ref"].rpartition("/")[2]])
        return {key: resolve(value) for key, value in node.items() if key != "$defs"}

    resolved: dict[str, Any] = resolve(schema)
    return resolved
