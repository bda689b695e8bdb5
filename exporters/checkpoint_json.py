"""JSON as weight files hold it, and as it lies beside them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vtk.errors import CheckpointError, in_short

MAX_JSON_BYTES = 64 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. CheckpointError for anything else, and for a file that is not there.

    Of two values under one name the last one counts, as for everybody who reads the files of published models.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path.name} is larger than {MAX_JSON_BYTES} bytes.")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name} should hold a JSON object, not a {type(value).__name__}.")
    return value


def unrepeated(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names occur once, as `object_pairs_hook` of `json.loads`. Raises ValueError for any other.

    JSON itself lets a name occur again, and its readers silently drop what it stood for first.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name '{in_short(name)}' is there twice in one object")
    return found
