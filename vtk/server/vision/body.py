"""From the body of a request, JSON or form, to checked options and the pictures' sources."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from anyio import to_thread
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from vtk.errors import RequestError, UsageError
from vtk.server.json_values import check_values
from vtk.server.pictures import PictureSource
from vtk.server.vision.form import PICTURE_FIELDS, Form, FormReader
from vtk.server.vision.options import OBJECTS, PictureUrl, VisionOptions

Options = TypeVar("Options", bound=VisionOptions)

MAX_VALUES = 400_000  # of one JSON body: the longest lists of all options together
LIST_FIELDS = ("classes", "prompts")
JSON_FIELDS = ("points", "point_labels", "box_xyxy")  # lists of numbers, which a form holds as text


@dataclass(frozen=True)
class Asked(Generic[Options]):
    """One request as checked: its options and at least one picture, in their order."""

    options: Options
    sources: tuple[PictureSource, ...]


async def read_body(request: Request, kind: type[Options], *, max_pictures: int) -> Asked[Options]:
    """Raises UsageError or RequestError for what is not a request of `kind`, ClientDisconnect when the client left."""
    if request.query_params:
        raise UsageError("Options are part of the body, not of the URL.", hint="Send them as JSON or form fields.")
    content_type = request.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        reader = FormReader(content_type, max_pictures=max_pictures)
        async for chunk in request.stream():
            reader.feed(chunk)
        return _checked(*_from_form(reader.finish(), kind), max_pictures)
    if media_type == "application/json":
        body = await request.body()
        return _checked(*await to_thread.run_sync(_from_json, body, kind), max_pictures)
    raise UsageError(
        f"The body must be multipart/form-data or application/json, its Content-Type is '{media_type[:100]}'.",
        hint="For one picture: curl -F images=@FILE URL.",
    )


def _from_json(body: bytes, kind: type[Options]) -> tuple[Options, list[PictureSource]]:
    check_values(body, MAX_VALUES)
    options = _validated(kind, lambda: kind.model_validate_json(body, strict=True))
    return options, [image.url if isinstance(image, PictureUrl) else image for image in options.images]


def _from_form(form: Form, kind: type[Options]) -> tuple[Options, list[PictureSource]]:
    values: dict[str, Any] = {}
    for name, given in form.fields.items():
        if len(given) > 1 and name not in LIST_FIELDS:
            raise UsageError(f"The form field '{name[:100]}' was given {len(given)} times.", hint="Give it once.")
        values[name] = given if name in LIST_FIELDS else given[0]
    if "prompts" in values:
        values["prompts"] = [_prompt(text) for text in values["prompts"]]
    values |= {name: _list(name, values[name]) for name in JSON_FIELDS if name in values}
    return _validated(kind, lambda: kind.model_validate(values)), list(form.pictures)


def _prompt(text: str) -> Any:
    """A form has no objects: a prompt with boxes comes as JSON."""
    if not text.lstrip().startswith("{"):
        return text
    return _loaded(text, "A prompt that starts with '{' must be a JSON object.")


def _list(name: str, text: str) -> Any:
    return _loaded(text, f"The form field '{name}' must be a JSON list of numbers.")


def _loaded(text: str, complaint: str) -> Any:
    check_values(text.encode(), MAX_VALUES)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(complaint) from None


def _checked(options: Options, sources: list[PictureSource], max_pictures: int) -> Asked[Options]:
    if not sources:
        raise UsageError("The request has no picture.", hint="Send at least one as 'images'.")
    if len(sources) > max_pictures:
        raise UsageError(
            f"The request has {len(sources)} pictures; at most {max_pictures} are answered at once.",
            hint="Send several requests.",
        )
    return Asked(options, tuple(sources))


def _validated(kind: type[Options], validate: Callable[[], Options]) -> Options:
    """pydantic's first complaint, without the value that caused it: that may be a picture."""
    try:
        return validate()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    location = first["loc"]
    within: type[BaseModel] = kind
    if len(location) > 2 and location[0] in OBJECTS:
        within = OBJECTS[str(location[0])]
        location = (*location[:2], *location[3:])  # without pydantic's word for which of two types it took
    place = ".".join(str(part) for part in location)[:100]
    if first["type"] == "extra_forbidden":
        known = ", ".join(name for name in within.model_fields if name not in PICTURE_FIELDS)
        raise RequestError("unknown_field", f"There is no option '{place}'.", hint=f"Options here: {known}.")
    raise RequestError("invalid_value", f"{place or 'The body'}: {first['msg']}.")
