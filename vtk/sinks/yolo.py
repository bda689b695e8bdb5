"""Detections as YOLO text files, one line each, in fractions of the picture.

With boxes a line is `class cx cy w h confidence`, with masks `class x1 y1 x2 y2 … confidence`: the outline of the mask
(see `outlines`), or of the box where no pixel of the mask is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from vtk.bundle import Label
from vtk.postprocess.rle import paint_tight, unpack_counts
from vtk.sinks.base import OutputFolder, Record, Row, Rows, Sink
from vtk.sinks.outlines import Points, outline

FOLDER = "yolo"


class YoloSink(Sink):
    """`yolo/labels/NAME.txt` per picture, empty when nothing was found, and `yolo/classes.txt`, one name per line."""

    def __init__(self, out: OutputFolder, labels: tuple[Label, ...], *, outlines: bool = False) -> None:
        self.out = out
        self.names = [label.name for label in labels]
        self.outlines = outlines

    def write(self, record: Record) -> None:
        lines = _outline_lines(record.row) if self.outlines else _box_lines(record.row)
        with self.out.replace(f"{FOLDER}/labels/{record.item.output}.txt") as stream:
            for line in lines:
                stream.write(line.encode())

    def finish(self, count: int, rows: Rows) -> None:
        with self.out.replace(f"{FOLDER}/classes.txt", durable=True) as stream:
            stream.write("".join(f"{name}\n" for name in self.names).encode())


def _box_lines(row: Row) -> Iterator[str]:
    for item in row["detections"]:
        (x0, y0), (x1, y1) = _fractions(_corners(item), row)
        yield _line(item, ((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0))


def _outline_lines(row: Row) -> Iterator[str]:
    for item in row["detections"]:
        counts = unpack_counts(item["segmentation"]["counts"].encode("ascii"))
        mask, left, top = paint_tight(counts, (row["height"], row["width"]))
        points = outline(mask) + np.array((left, top))
        if not len(points):
            (x0, y0), (x1, y1) = _corners(item)
            points = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
        yield _line(item, _fractions(points, row).ravel())


def _corners(item: Row) -> Points:
    return np.array(item["bbox_xyxy"], np.float64).reshape(2, 2)


def _fractions(points: Points, row: Row) -> Points:
    return np.clip(points / (row["width"], row["height"]), 0.0, 1.0)


def _line(item: Row, numbers: Iterable[float]) -> str:
    return f"{item['class_id']} " + " ".join(f"{number:.6f}" for number in (*numbers, item["score"])) + "\n"
