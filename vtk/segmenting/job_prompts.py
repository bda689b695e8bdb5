"""What a folder job asks of its pictures: the same texts of all, and examples or objects in those that files name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtk.bundle import Label
from vtk.errors import InputError, UsageError
from vtk.naming import utf8
from vtk.segmenting.clicks import Clicks
from vtk.segmenting.picture_file import check_fields, numbers, read_items, shown
from vtk.segmenting.places import ON, Box
from vtk.segmenting.prompts import OBJECT, VISUAL, Prompt, labels_of

EXAMPLE_FIELDS = frozenset({"prompt", "xyxy", "positive"})
OBJECT_FIELDS = frozenset({"points", "labels", "xyxy", "name"})

Asked = tuple["Prompt | None", ...]


@dataclass(frozen=True)
class JobPrompts:
    """texts: the classes; None, at the end, is what only examples show. objects: the classes after those, names of what
    is pointed at. by_picture: what is asked of pictures with examples or objects, by file name, a prompt for each class
    or None. boxes_sha256, points_sha256: of the files that they are from.
    """

    texts: tuple[str | None, ...]
    by_picture: Mapping[str, Asked] = field(default_factory=dict)
    boxes_sha256: str | None = None
    objects: tuple[str, ...] = ()
    points_sha256: str | None = None

    @property
    def labels(self) -> tuple[Label, ...]:
        """Class i is prompt i."""
        return labels_of([*(VISUAL if text is None else Prompt(text).name for text in self.texts), *self.objects])

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, as JSON data."""
        points = {} if self.points_sha256 is None else {"points_sha256": self.points_sha256}
        return {"texts": list(self.texts), "boxes_sha256": self.boxes_sha256, **points}

    @property
    def all(self) -> list[Prompt]:
        """Every prompt of every picture."""
        asked = [self.of(""), *self.by_picture.values()]
        return [prompt for prompts in asked for prompt in prompts if prompt is not None]

    def check_pictures(self, file_names: Sequence[str]) -> None:
        """Raise InputError for examples or points in a picture that is none of these."""
        if missing := self.absent(map(utf8, file_names)):
            raise InputError(
                f"There are points or examples in '{missing[0]}', which is none of the {len(file_names)} pictures.",
                hint=f"The pictures are called like '{file_names[0]}'.",
            )

    def absent(self, file_names: Iterable[str]) -> list[str]:
        """The pictures with examples or points that are none of these, whose names are written as in results."""
        absent = set(self.by_picture)
        absent.difference_update(file_names)
        return sorted(absent)

    def of(self, file_name: str) -> Asked:
        """What is asked of the picture of that name."""
        asked = self.by_picture.get(utf8(file_name))
        if asked is not None:
            return asked
        return (*(None if text is None else Prompt(text) for text in self.texts), *([None] * len(self.objects)))


def job_prompts(texts: Sequence[str], boxes: Path | None = None, points: Path | None = None) -> JobPrompts:
    """Prompts of texts, which must differ, of the examples in a file, and of the objects in another.

    Each file is an object: for names of pictures, as in the rows of results, a list. boxes: of `{"prompt": "yellow
    bus", "xyxy": [left, top, right, bottom], "positive": true}` in pixels. `prompt` is one of the texts, or is left out
    for what only examples show, which is asked of pictures with such examples; `positive` is true unless given. points:
    of one for each object, `{"points": [[x, y], ...], "labels": [1, ...], "xyxy": [...], "name": "dog"}`. A label is 1
    on the object, as all are unless given, and 0 beside it; `xyxy` is a box around it; one of points and box may be
    left out; `name` is its class, "object" unless given. Raises UsageError for prompts that cannot be, InputError for a
    file that is none.
    """
    names = [Prompt(text).name for text in texts]
    if len(set(names)) < len(names):
        raise UsageError("The same prompt was given twice.", hint="Each prompt is a class of the results.")
    listed, boxes_sha256 = _examples(boxes, texts)
    pointed, points_sha256 = _objects(points)
    has_visual = any(text is None for items in listed.values() for text, _, _ in items)
    classes = (*texts, *([None] if has_visual else []))
    objects = tuple(dict.fromkeys(name for items in pointed.values() for name, _ in items))
    _check_objects(objects, [*names, *([VISUAL] if has_visual else [])])
    by_picture = {
        name: (
            *(_asked(text, listed.get(name, [])) for text in classes),
            *(_pointed(kind, pointed.get(name, [])) for kind in objects),
        )
        for name in dict.fromkeys((*listed, *pointed))
    }
    return _nonempty(JobPrompts(classes, by_picture, boxes_sha256, objects, points_sha256))


_Example = tuple["str | None", Box, bool]
_Object = tuple[str, Clicks]


def _examples(path: Path | None, texts: Sequence[str]) -> tuple[Mapping[str, Sequence[_Example]], str | None]:
    if path is None:
        return {}, None
    example = '{"a.jpg": [{"prompt": "yellow bus", "xyxy": [10, 20, 200, 300]}]}'
    listed, digest = read_items(path, _example, what="examples", example=example)
    _check_known(listed, texts, path)
    return listed, digest


def _objects(path: Path | None) -> tuple[Mapping[str, Sequence[_Object]], str | None]:
    if path is None:
        return {}, None
    example = '{"a.jpg": [{"points": [[120, 80], [15, 90]], "labels": [1, 0]}]}'
    return read_items(path, _object, what="points", example=example)


def _example(item: Mapping[str, Any]) -> _Example:
    check_fields(item, EXAMPLE_FIELDS)
    text, positive = item.get("prompt"), item.get("positive", True)
    if not isinstance(text, str | None):
        raise ValueError(f"prompt is a text, not {shown(text)}")
    if not isinstance(positive, bool):
        raise ValueError(f"positive is true or false, not {shown(positive)}")
    return text, _box(item.get("xyxy")), positive


def _object(item: Mapping[str, Any]) -> _Object:
    check_fields(item, OBJECT_FIELDS)
    name, places = item.get("name", OBJECT), item.get("points", [])
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"name is a text, not {shown(name)}")
    if not isinstance(places, list):
        raise ValueError(f"points is a list, not {shown(places)}")
    points = tuple((x, y) for x, y in (numbers(place, "x, y") for place in places))
    labels = item.get("labels", [ON] * len(points))
    if not isinstance(labels, list) or any(type(label) is not int for label in labels):
        raise ValueError(f"labels is a list of 1 and 0, not {shown(labels)}")
    try:
        clicks = Clicks(points, tuple(labels), _box(item["xyxy"]) if "xyxy" in item else None)
        return Prompt(name, objects=(clicks,)).name, clicks
    except UsageError as error:
        raise ValueError(str(error).rstrip(".")) from None


def _box(value: Any) -> Box:
    left, top, right, bottom = numbers(value, "left, top, right, bottom")
    return left, top, right, bottom


def _check_known(listed: Mapping[str, Sequence[_Example]], texts: Sequence[str], boxes: Path) -> None:
    for name, items in listed.items():
        for text, _, _ in items:
            if text is not None and text not in texts:
                raise UsageError(
                    f"{boxes} has an example of '{text}' in '{name}', which is no prompt of this job.",
                    hint=f"Add it with --prompt; there are: {', '.join(texts) or 'none'}.",
                )


def _asked(text: str | None, items: Sequence[_Example]) -> Prompt | None:
    """The prompt of one class in one picture, or None where nothing is asked."""
    positive = tuple(box for prompt, box, is_positive in items if prompt == text and is_positive)
    negative = tuple(box for prompt, box, is_positive in items if prompt == text and not is_positive)
    return None if text is None and not positive and not negative else Prompt(text, positive, negative)


def _pointed(name: str, items: Sequence[_Object]) -> Prompt | None:
    objects = tuple(clicks for kind, clicks in items if kind == name)
    return Prompt(name, objects=objects) if objects else None


def _check_objects(objects: Sequence[str], others: Sequence[str]) -> None:
    if same := [name for name in objects if name in others]:
        raise UsageError(
            f"'{same[0]}' is a prompt and the name of what is pointed at: two classes of one name.",
            hint="Give the objects another 'name'.",
        )


def _nonempty(prompts: JobPrompts) -> JobPrompts:
    if not prompts.labels:
        raise UsageError(
            "This model finds what it is asked for, and was asked for nothing.",
            hint='Say what to look for, as in: --prompt "yellow bus".',
        )
    return prompts
