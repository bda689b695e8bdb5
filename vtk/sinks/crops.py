"""What was found, cut out of its picture: one file per detection."""

from __future__ import annotations

import math
import re

from PIL import Image

from vtk.preprocess.decode import DecodeOptions
from vtk.sinks.annotated import is_jpeg, save_picture
from vtk.sinks.base import OutputFolder, Record, Row, Sink

FOLDER = "crops"
MAX_SLUG = 40


class CropsSink(Sink):
    """`crops/NAME/003-class-name.jpg` (PNG unless the input is a JPEG), numbered from 0 as the row's detections are.

    A crop is the box, rounded outward to whole pixels and cut at the picture's border. A box that lies outside the
    picture has none: its number is missing.
    """

    wants_picture = True

    def __init__(self, out: OutputFolder, options: DecodeOptions) -> None:
        self.out = out
        self.options = options

    def write(self, record: Record) -> None:
        if not record.row["detections"]:
            return
        data = record.read()
        as_jpeg = data is not None and is_jpeg(data)
        picture = Image.fromarray(record.pixels(self.options))
        for number, item in enumerate(record.row["detections"]):
            left, top, right, bottom = crop_box(item["bbox_xyxy"], picture.size)
            if left < right and top < bottom:
                name = f"{number:03}-{slug(item)}.{'jpg' if as_jpeg else 'png'}"
                with self.out.replace(f"{FOLDER}/{record.item.output}/{name}") as stream:
                    save_picture(stream, picture.crop((left, top, right, bottom)), as_jpeg=as_jpeg)


def crop_box(xyxy: list[float], size_wh: tuple[int, int]) -> tuple[int, int, int, int]:
    """Whole pixels that cover the box inside the picture; left ≥ right or top ≥ bottom where there are none."""
    left, top, right, bottom = xyxy
    width, height = size_wh
    return (
        max(0, math.floor(left)),
        max(0, math.floor(top)),
        min(width, math.ceil(right)),
        min(height, math.ceil(bottom)),
    )


def slug(item: Row) -> str:
    """The class as a part of a file name on any system: letters, digits and dashes."""
    words = re.sub(r"[\W_]+", "-", item["name"]).strip("-")[:MAX_SLUG].strip("-")
    return words or f"class-{item['class_id']}"
