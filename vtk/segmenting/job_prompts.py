"""What a folder job asks of its pictures: the same texts of all, and examples in those that a file names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtk.bundle import Label
from vtk.errors import InputError, UsageError
from vtk.segmenting.clicks import Box
from vtk.segmenting.prompts import VISUAL, Prompt, labels_of

KEYS = {"prompt", "xyxy", "positive"}

Asked = tuple["Prompt | None", ...]


@dataclass(frozen=True)
class JobPrompts:
    """texts: the classes; None, at the end, is what only examples show. by_picture: what is asked of pictures with
    examples, by file name, a prompt for each class or None. boxes_sha256: of the file that the examples are from.
    """

    texts: tuple[str | None, ...]
    by_picture: Mapping[str, Asked] = field(default_factory=dict)
    boxes_sha256: str | None = None

    @property
    def labels(self) -> tuple[Label, ...]:
        """Class i is prompt i."""
        return labels_of([VISUAL if text is None else Prompt(text).name for text in self.texts])

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, as JSON data."""
        return {"texts": list(self.texts), "boxes_sha256": self.boxes_sha256}

    @property
    def all(self) -> list[Prompt]:
        """Every prompt of every picture."""
        asked = [self.of(""), *self.by_picture.values()]
        return [prompt for prompts in asked for prompt in prompts if prompt is not None]

    def check_pictures(self, file_names: Sequence[str]) -> None:
        """Raise InputError for examples in a picture that is none of these."""
        if missing := sorted(self.by_picture.keys() - set(file_names)):
            raise InputError(
                f"There are examples in '{missing[0]}', which is none of the {len(file_names)} pictures.",
                hint=f"The pictures are called like '{file_names[0]}'.",
            )

    def of(self, file_name: str) -> Asked:
        """What is asked of the picture of that name."""
        texts = tuple(None if text is None else Prompt(text) for text in self.texts)
        return self.by_picture.get(file_name, texts)


def job_prompts(texts: Sequence[str], boxes: Path | None = None) -> JobPrompts:
    """Prompts of texts, which must differ, and of the examples in a file.

    The file is an object: for names of pictures, as in the rows of results, lists of `{"prompt": "yellow bus", "xyxy":
    [left, top, right, bottom], "positive": true}` in pixels. `prompt` is one of the texts, or is left out for what only
    examples show, which is asked of pictures with such examples; `positive` is true unless given. Raises UsageError for
    prompts that cannot be, InputError for a file that is none.
    """
    names = [Prompt(text).name for text in texts]
    if len(set(names)) < len(names):
        raise UsageError("The same prompt was given twice.", hint="Each prompt is a class of the results.")
    if boxes is None:
        return _nonempty(JobPrompts(tuple(texts)))
    try:
        data = boxes.read_bytes()
        listed = {str(name): [_example(item) for item in items] for name, items in json.loads(data).items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{boxes} holds no examples: {error}.",
            hint='Expected: {"a.jpg": [{"prompt": "yellow bus", "xyxy": [10, 20, 200, 300]}]}.',
        ) from error
    _check_known(listed, texts, boxes)
    has_visual = any(text is None for items in listed.values() for text, _, _ in items)
    classes = (*texts, *([None] if has_visual else []))
    by_picture = {name: tuple(_asked(text, items) for text in classes) for name, items in listed.items()}
    return _nonempty(JobPrompts(classes, by_picture, hashlib.sha256(data).hexdigest()))


_Example = tuple["str | None", Box, bool]


def _example(item: Any) -> _Example:
    if unknown := item.keys() - KEYS:
        raise ValueError(f"an example has the unknown field {sorted(unknown)[0]!r}")
    text, positive = item.get("prompt"), item.get("positive", True)
    if not isinstance(text, str | None) or not isinstance(positive, bool):
        raise ValueError(f"an example has the prompt {text!r} and is positive {positive!r}")
    left, top, right, bottom = map(float, item["xyxy"])
    return text, (left, top, right, bottom), positive


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


def _nonempty(prompts: JobPrompts) -> JobPrompts:
    if not prompts.texts:
        raise UsageError(
            "This model finds what it is asked for, and was asked for nothing.",
            hint='Say what to look for, as in: --prompt "yellow bus".',
        )
    return prompts
