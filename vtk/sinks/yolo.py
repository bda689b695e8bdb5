"""Detections as YOLO text files: one `class cx cy w h confidence` line each, in fractions of the picture."""

from __future__ import annotations

from vtk.bundle import Label
from vtk.sinks.base import OutputFolder, Record, Row, Rows, Sink

FOLDER = "yolo"


class YoloSink(Sink):
    """`yolo/labels/NAME.txt` per picture, empty when nothing was found, and `yolo/classes.txt`, one name per line."""

    def __init__(self, out: OutputFolder, labels: tuple[Label, ...]) -> None:
        self.out = out
        self.names = [label.name for label in labels]

    def write(self, record: Record) -> None:
        lines = [_line(item, record.row["width"], record.row["height"]) for item in record.row["detections"]]
        with self.out.replace(f"{FOLDER}/labels/{record.item.output}.txt") as stream:
            stream.write("".join(lines).encode())

    def finish(self, count: int, rows: Rows) -> None:
        with self.out.replace(f"{FOLDER}/classes.txt", durable=True) as stream:
            stream.write("".join(f"{name}\n" for name in self.names).encode())


def _line(detection: Row, width: int, height: int) -> str:
    left, top, right, bottom = detection["bbox_xyxy"]
    x0, x1 = (min(max(x / width, 0.0), 1.0) for x in (left, right))
    y0, y1 = (min(max(y / height, 0.0), 1.0) for y in (top, bottom))
    numbers = ((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0, detection["score"])
    return f"{detection['class_id']} " + " ".join(f"{number:.6f}" for number in numbers) + "\n"
