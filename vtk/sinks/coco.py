"""Detections as COCO files: `coco.json` (images, annotations, categories) and results for evaluators.

Masks are run lengths (`segmentation`: `size`, `counts`), as they are in the rows: nothing is lost and nothing rounded.
`coco_results.json` holds boxes and `coco_results_masks.json` masks: pycocotools takes the area of a result from its box
where it has one, which puts masks into the wrong size range.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from vtk.bundle import Label
from vtk.errors import InputError, UsageError
from vtk.inputs import Plan
from vtk.naming import utf8
from vtk.postprocess.rle import unpack_counts
from vtk.sinks.base import OutputFolder, Row, Rows, Sink

DATASET = "coco.json"
RESULTS = "coco_results.json"
MASK_RESULTS = "coco_results_masks.json"


class CocoSink(Sink):
    """All files are made at the end from the canonical rows, one row in memory at a time. masks: rows have them.

    Image ids are the place in the job from 1, or those of `image_ids` (file name → id). Boxes are xywh, not clipped.
    """

    def __init__(
        self,
        out: OutputFolder,
        labels: tuple[Label, ...],
        image_ids: Mapping[str, int] | None,
        *,
        masks: bool = False,
    ) -> None:
        self.out = out
        self.masks = masks
        self.categories = [{"id": label.category_id, "name": label.name} for label in labels]
        self.image_ids = image_ids

    def finish(self, count: int, rows: Rows) -> None:
        with self.out.replace(DATASET, durable=True) as stream:
            stream.write(b'{"images": ')
            _write_array(stream, (self._image(row) for row in rows()))
            stream.write(b', "annotations": ')
            annotations = enumerate((item for row in rows() for item in self._detections(row)), start=1)
            _write_array(stream, (_annotation(number, item) for number, item in annotations))
            stream.write(b', "categories": ' + json.dumps(self.categories, ensure_ascii=False).encode() + b"}\n")
        self._write_results(RESULTS, "segmentation", rows)
        if self.masks:
            self._write_results(MASK_RESULTS, "bbox", rows)

    def _write_results(self, name: str, left_out: str, rows: Rows) -> None:
        found = (item for row in rows() for item in self._detections(row))
        with self.out.replace(name, durable=True) as stream:
            _write_array(stream, ({key: item[key] for key in item if key != left_out} for item in found))

    def _image_id(self, row: Row) -> int:
        index: int = row["index"]
        if self.image_ids is None:
            return index + 1
        if row["file_name"] not in self.image_ids:
            raise UsageError(
                f"The job has a row of '{row['file_name']}', of which --coco-images knows nothing.",
                hint="The rows were changed by hand: undo that, or do the job again with --overwrite.",
            )
        return self.image_ids[row["file_name"]]

    def _image(self, row: Row) -> Row:
        return {"id": self._image_id(row), **{key: row[key] for key in ("file_name", "width", "height")}}

    def _detections(self, row: Row) -> list[Row]:
        image_id = self._image_id(row)
        return [
            {
                "image_id": image_id,
                "category_id": item["category_id"],
                "bbox": _xywh(item["bbox_xyxy"]),
                "score": item["score"],
                **({"segmentation": item["segmentation"]} if "segmentation" in item else {}),
            }
            for item in row["detections"]
        ]


def read_image_ids(path: Path, plan: Plan) -> dict[str, int]:
    """Ids of the plan's pictures from the `images` of a COCO file, by `file_name` relative to the input folder.

    Raises InputError for a file that is no COCO file and for pictures that it does not name.
    """
    known = load_image_ids(path)
    names = list(map(utf8, plan.items.file_names))
    if missing := [name for name in names if name not in known]:
        raise InputError(
            f"{path} has no id for {len(missing)} of {len(names)} pictures; the first is '{missing[0]}'.",
            hint=f"Its names look like '{next(iter(known), '')}': give the folder to which they are relative as INPUT.",
        )
    return {name: known[name] for name in names}


def load_image_ids(path: Path) -> dict[str, int]:
    """File name → id of all `images` of a COCO file. Raises InputError for a file that is none."""
    try:
        images = json.loads(path.read_bytes())["images"]
        return {str(image["file_name"]): int(image["id"]) for image in images}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} is not a COCO file with images (file_name, id): {error!r}.") from error


def _annotation(number: int, detection: Row) -> Row:
    return {"id": number, **detection, "area": _area(detection), "iscrowd": 0}


def _area(detection: Row) -> float:
    """Pixels of the mask, or of the box where there is none."""
    if "segmentation" in detection:
        return int(unpack_counts(detection["segmentation"]["counts"].encode("ascii"))[1::2].sum())
    width: float
    height: float
    width, height = detection["bbox"][2:]
    return width * height


def _xywh(xyxy: list[float]) -> list[float]:
    left, top, right, bottom = xyxy
    return [left, top, round(right - left, 4), round(bottom - top, 4)]


def _write_array(stream: BinaryIO, values: Iterable[Row]) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", write_through=True)
    separator = "["
    for value in values:
        text.write(separator + json.dumps(value, ensure_ascii=False))
        separator = ",\n"
    text.write("[]" if separator == "[" else "]")
    text.detach()
