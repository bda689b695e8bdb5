"""Masks as one indexed PNG per picture, as data sets for segmentation hold them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from vtk.bundle import Label
from vtk.errors import UsageError
from vtk.postprocess.results import Detections
from vtk.postprocess.rle import unpack_counts
from vtk.sinks.base import OutputFolder, Record, Rows, Sink
from vtk.sinks.drawing import class_color

FOLDER = "masks"
MAX_CLASSES = 255


class MaskPngSink(Sink):
    """`masks/NAME.png`: a pixel is 0 where there is nothing, else 1 + the class index, in the colors of the classes.

    Where masks overlap, the pixel belongs to the one with the highest score, and to the first of those that are equal.
    `masks/classes.txt` names the values from 1 on, one per line. Raises UsageError for more classes than a palette has.
    """

    def __init__(self, out: OutputFolder, labels: tuple[Label, ...]) -> None:
        if len(labels) > MAX_CLASSES:
            raise UsageError(
                f"--format masks holds {MAX_CLASSES} classes, this bundle has {len(labels)}.",
                hint="Use coco or jsonl: their masks have no such limit.",
            )
        self.out = out
        self.names = [label.name for label in labels]
        colors = [(0, 0, 0), *(class_color(index) for index in range(len(labels)))]
        self.palette = bytes(channel for color in colors for channel in color)

    def write(self, record: Record) -> None:
        assert isinstance(record.result, Detections)
        picture = Image.fromarray(class_map(record.result), mode="P")
        picture.putpalette(self.palette)
        with self.out.replace(f"{FOLDER}/{record.item.output}.png") as stream:
            picture.save(stream, "PNG", compress_level=1)

    def finish(self, count: int, rows: Rows) -> None:
        with self.out.replace(f"{FOLDER}/classes.txt", durable=True) as stream:
            stream.write("".join(f"{name}\n" for name in self.names).encode())


def class_map(found: Detections) -> npt.NDArray[np.uint8]:
    """(H, W) of the class index + 1 of the best mask at each pixel, 0 for none."""
    assert found.masks is not None
    width, height = found.resolution_wh
    flat = np.zeros(width * height, np.uint8)  # column after column, as run lengths count
    for index in np.argsort(-found.scores, kind="stable")[::-1]:
        edges = np.cumsum(unpack_counts(found.masks.rle[index]))
        for start, end in zip(edges[0::2], edges[1::2], strict=False):
            flat[start:end] = found.class_ids[index] + 1
    return np.ascontiguousarray(flat.reshape(width, height).T)
