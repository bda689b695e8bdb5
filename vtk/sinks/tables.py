"""Detections and classes as flat tables: one line per thing found, so that any spreadsheet or data frame reads them.

A picture in which nothing was found has one line, with the columns of what was found left empty: no picture is missing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping

from vtk.bundle import Task
from vtk.sinks.base import OutputFolder, Row, Rows, Sink
from vtk.sinks.parquet import BATCH_ROWS, GROUP_BATCHES, chunks, load_arrow

NAMES: Mapping[Task, str] = {"detect": "detections", "segment": "detections", "classify": "classes"}

PICTURE_COLUMNS = {"index": "int64", "file_name": "string", "path": "string", "sha256": "string"} | {
    "width": "int32",
    "height": "int32",
}
CLASS_COLUMNS = {"class_id": "int32", "category_id": "int64", "name": "string", "score": "float32"}
BOX_COLUMNS = dict.fromkeys(("x0", "y0", "x1", "y1"), "float32")
MASK_COLUMNS = {"mask_counts": "string"}


def columns(task: Task) -> dict[str, str]:
    """Name → Arrow type. Boxes are pixels of the upright picture; `mask_counts` are COCO's run lengths of its size."""
    found = CLASS_COLUMNS if task == "classify" else CLASS_COLUMNS | BOX_COLUMNS
    return PICTURE_COLUMNS | found | (MASK_COLUMNS if task == "segment" else {})


def flat_rows(row: Row, task: Task) -> Iterator[Row]:
    """The lines of one picture, in the order in which things were found."""
    picture = {name: row[name] for name in PICTURE_COLUMNS}
    for item in row["classes" if task == "classify" else "detections"] or [None]:
        yield {**picture, **({} if item is None else _flat(item))}


def _flat(item: Row) -> Row:
    flat = {name: item[name] for name in CLASS_COLUMNS}
    flat |= zip(BOX_COLUMNS, item.get("bbox_xyxy", ()), strict=False)
    return flat | ({"mask_counts": item["segmentation"]["counts"]} if "segmentation" in item else {})


class CsvSink(Sink):
    """`detections.csv` or `classes.csv`: a head line, commas, quotes where needed, CRLF (RFC 4180), UTF-8."""

    def __init__(self, out: OutputFolder, task: Task) -> None:
        self.out = out
        self.task = task

    def finish(self, count: int, rows: Rows) -> None:
        with self.out.replace(f"{NAMES[self.task]}.csv", durable=True) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
            writer = csv.DictWriter(text, columns(self.task))
            writer.writeheader()
            for row in rows():
                writer.writerows(flat_rows(row, self.task))
            text.detach()


class TableSink(Sink):
    """`detections.parquet` or `classes.parquet`: the same table with types, written in groups of rows."""

    def __init__(self, out: OutputFolder, task: Task) -> None:
        self.arrow = load_arrow()
        self.out = out
        self.task = task

    def finish(self, count: int, rows: Rows) -> None:
        schema = self.arrow.schema([(name, getattr(self.arrow, kind)()) for name, kind in columns(self.task).items()])
        pending = (flat for row in rows() for flat in flat_rows(row, self.task))
        with (
            self.out.replace(f"{NAMES[self.task]}.parquet", durable=True) as stream,
            self.arrow.parquet.ParquetWriter(stream, schema) as writer,
        ):
            batches = (self.arrow.RecordBatch.from_pylist(rows, schema) for rows in chunks(pending, BATCH_ROWS))
            for group in chunks(batches, GROUP_BATCHES):
                writer.write_table(self.arrow.Table.from_batches(group))
