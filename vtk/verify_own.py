"""The user's own pictures in a verification: read one chunk after the other, those that do not decode listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from vtk.errors import ImageError
from vtk.inputs import expand
from vtk.preprocess.resize import RGBImage
from vtk.verify_report import Check

STAGE = "pictures"
SHOWN = 20


class OwnPictures:
    """A folder, or anything else that `vtk run` takes. A picture that cannot be read does not end the work."""

    def __init__(self, images: Path) -> None:
        """Raises InputError where there are none."""
        self._plan = expand([str(images)])
        self._bad: list[str] = []

    def chunks(self, size: int) -> Iterator[list[tuple[str, RGBImage]]]:
        """Names and pixels of up to `size` pictures at a time; a chunk of which none can be read is left out."""
        items = self._plan.items
        with self._plan.open_reader() as reader:
            for start in range(0, len(items), size):
                chosen = [items[index] for index in range(start, min(start + size, len(items)))]
                found = [(item.file_name, self._read(item.file_name, partial(reader.pixels, item))) for item in chosen]
                chunk = [(name, pixels) for name, pixels in found if pixels is not None]
                if chunk:
                    yield chunk

    def checks(self) -> list[Check]:
        """How many of all could not be read, when all chunks are through. Last: what differs is named before."""
        more = f" and {len(self._bad) - SHOWN} more" if len(self._bad) > SHOWN else ""
        detail = ", ".join(self._bad[:SHOWN]) + more
        return [Check(STAGE, f"of {len(self._plan.items)}, do not decode", len(self._bad), 0, detail)]

    def _read(self, name: str, pixels: Callable[[], RGBImage]) -> RGBImage | None:
        try:
            return pixels()
        except ImageError as error:
            self._bad.append(f"{name} ({error.reason})")
            return None
