"""How much a JSON body may become: three bytes of it can be a kilobyte of objects and complaints about them."""

from __future__ import annotations

import re

from vtk.errors import RequestError

CONTAINER_VALUES = 16  # what an array or object takes of memory and time, in numbers
_STRING = re.compile(rb'"[^"]*"?')  # once no quote is escaped


def check_values(body: bytes, most: int) -> None:
    """Raise RequestError for JSON of more than `most` values, before anything of it is parsed.

    An array or object counts as CONTAINER_VALUES.
    """
    if _count(body) <= most:
        return  # whatever of it stands in texts
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * most or _count(_STRING.sub(b"", bare)) > most:
        raise RequestError(
            "invalid_request",
            f"The body holds more than {most:,} JSON values, an array or object counted as {CONTAINER_VALUES}.",
        )


def _count(text: bytes) -> int:
    return text.count(b",") + CONTAINER_VALUES * (text.count(b"[") + text.count(b"{"))
