"""Pictures with their detections drawn on them."""

from __future__ import annotations

import colorsys
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageDraw, ImageFont

from vtk.preprocess.decode import DecodeOptions, decode, read_picture
from vtk.sinks.base import OutputFolder, Record, Row, Sink

FOLDER = "annotated"
JPEG_MAGIC = b"\xff\xd8\xff"
JPEG_QUALITY = 95
GOLDEN_RATIO = 0.618033988749895

Color = tuple[int, int, int]


class AnnotatedSink(Sink):
    """`annotated/NAME.jpg` for JPEG input and `NAME.png` for all others, upright.

    The picture is read again, so that memory does not hold pictures that wait for the engine. Where nothing was found,
    the pixels are the input's: a JPEG is copied, since encoding it again would change them.
    """

    def __init__(self, out: OutputFolder, options: DecodeOptions) -> None:
        self.out = out
        self.options = options

    def write(self, record: Record) -> None:
        data = read_picture(Path(record.item.path))
        name = f"{FOLDER}/{record.item.output}.{'jpg' if is_jpeg(data) else 'png'}"
        with self.out.replace(name) as stream:
            write_annotated(stream, data, record.row["detections"], self.options)


def is_jpeg(data: bytes) -> bool:
    """Whether the annotated copy of an encoded picture is a JPEG; all others become PNG."""
    return data.startswith(JPEG_MAGIC)


def write_annotated(stream: BinaryIO, data: bytes, detections: list[Row], options: DecodeOptions) -> None:
    """Encode the picture in `data`, upright and with its detections; a JPEG without any is copied."""
    if is_jpeg(data) and not detections:
        stream.write(data)
        return
    picture = Image.fromarray(decode(data, options))
    draw_detections(picture, detections)
    if is_jpeg(data):
        picture.save(stream, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    else:
        picture.save(stream, "PNG", compress_level=1)


def draw_detections(picture: Image.Image, detections: list[Row]) -> None:
    """Draw boxes, names and scores in place, the best on top; sizes follow the picture's."""
    draw = ImageDraw.Draw(picture)
    line = max(2, round(min(picture.size) / 300))
    font = ImageFont.load_default(size=max(10, round(min(picture.size) / 40)))
    for item in reversed(detections):
        color = class_color(item["class_id"])
        left, top, right, bottom = item["bbox_xyxy"]
        draw.rectangle((min(left, right), min(top, bottom), max(left, right), max(top, bottom)), None, color, line)
        _draw_label(draw, f"{item['name']} {item['score']:.2f}", (left, top), color, font)


def _draw_label(
    draw: ImageDraw.ImageDraw,
    text: str,
    corner: tuple[float, float],
    color: Color,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> None:
    """A filled tag above the box's corner, moved inside the picture where it would leave it."""
    x0, y0, x1, y1 = draw.textbbox((0, 0), text, font=font)
    width, height = x1 - x0 + 4, y1 - y0 + 4
    left = max(0.0, min(corner[0], draw.im.size[0] - width))
    top = max(0.0, corner[1] - height)
    draw.rectangle((left, top, left + width, top + height), fill=color)
    luma = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
    draw.text((left + 2 - x0, top + 2 - y0), text, fill=(0, 0, 0) if luma > 140 else (255, 255, 255), font=font)


def class_color(class_id: int) -> Color:
    """RGB of a class: the same in every picture and job, and neighbors far apart on the color wheel."""
    red, green, blue = colorsys.hsv_to_rgb(class_id * GOLDEN_RATIO % 1.0, 0.85, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)
