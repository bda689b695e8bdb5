"""A JSON file that says something about pictures, by their file names: {"a.jpg": [{...}, {...}], ...}."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from vtk.errors import InputError, in_short
from vtk.exporters.checkpoint_json import unrepeated

T = TypeVar("T")

MAX_DIGITS = 18  # of a whole number


def read_items(
    path: Path, read: Callable[[Mapping[str, Any]], T], *, what: str, example: str
) -> tuple[dict[str, list[T]], str]:
    """What `read` makes of each item, by picture, and the SHA-256 of the file.

    `read` raises ValueError with a sentence for an item that is none. Raises InputError for a file that does not hold
    `what`, which looks like `example`.
    """
    try:
        data = path.read_bytes()
        return _items(_parsed(data), read), hashlib.sha256(data).hexdigest()
    except OSError as error:
        reason = error.strerror or "it cannot be read"
    except ValueError as error:
        reason = str(error)
    except RecursionError:
        reason = "its lists are nested too deeply"
    raise InputError(f"{path} holds no {what}: {reason}.", hint=f"Expected: {example}.")


def check_fields(item: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise ValueError for a field that means nothing."""
    if unknown := sorted(item.keys() - known):
        raise ValueError(f"there is no field '{unknown[0]}', only {', '.join(sorted(known))}")


def numbers(value: Any, names: str) -> tuple[float, ...]:
    """As many numbers as there are words in `names`. Raises ValueError for anything else."""
    count = len(names.split(", "))
    if not isinstance(value, list) or len(value) != count or not all(_is_number(item) for item in value):
        raise ValueError(f"[{names}] in pixels was expected, not {shown(value)}")
    return tuple(map(float, value))


def shown(value: Any) -> str:
    """A value as JSON, cut short."""
    return in_short(json.dumps(value, ensure_ascii=False))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data, object_pairs_hook=unrepeated, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON from line {error.lineno}, column {error.colno} on") from None
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"the whole number {digits[:MAX_DIGITS]}… has {len(digits)} digits")
    return int(digits)


def _items(parsed: Any, read: Callable[[Mapping[str, Any]], T]) -> dict[str, list[T]]:
    if not isinstance(parsed, dict):
        raise ValueError(f"an object with the names of pictures was expected, not {shown(parsed)}")
    found: dict[str, list[T]] = {}
    for name, items in parsed.items():
        if not isinstance(items, list):
            raise ValueError(f"a list was expected for '{name}', not {shown(items)}")
        found[name] = [_item(item, read, f"'{name}', item {place}") for place, item in enumerate(items)]
    return found


def _item(item: Any, read: Callable[[Mapping[str, Any]], T], where: str) -> T:
    if not isinstance(item, dict):
        raise ValueError(f"{where}: an object was expected, not {shown(item)}")
    try:
        return read(item)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
