"""Shell braces in names of shards, for shells and remote stores that do not expand them."""

from __future__ import annotations

import re
from itertools import islice, product

from vtk.errors import InputError

MAX_NAMES = 1_000_000
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}")


def expand_braces(text: str) -> list[str]:
    """`x-{000..010}.tar` as eleven names, `{a,b}.zip` as two; several braces give all combinations, the last fastest.

    A range counts up or down and is padded with zeros as its longer end is, if either end starts with one. Text without
    braces is one name. Raises InputError for more than a million names.
    """
    parts: list[list[str]] = []
    end, count = 0, 1
    for found in _BRACES.finditer(text):
        choices = found[3].split(",") if found[3] is not None else _range(found[1], found[2], text)
        parts += [[text[end : found.start()]], choices]
        end, count = found.end(), count * len(choices)
        if count > MAX_NAMES:
            raise InputError(f"The braces of {text} stand for more than {MAX_NAMES:,} names.")
    return ["".join(choice) for choice in islice(product(*parts, [text[end:]]), MAX_NAMES)]


def _range(first: str, last: str, text: str) -> list[str]:
    start, stop = int(first), int(last)
    if abs(stop - start) >= MAX_NAMES:
        raise InputError(f"The braces of {text} stand for more than {MAX_NAMES:,} names.")
    padded = any(len(end) > 1 and end.startswith("0") for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    step = 1 if stop >= start else -1
    return [f"{number:0{width}d}" for number in range(start, stop + step, step)]
