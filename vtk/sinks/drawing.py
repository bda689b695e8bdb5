"""Detections drawn on a picture: masks, boxes, names and scores."""

from __future__ import annotations

import colorsys

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vtk.postprocess.rle import paint_tight, unpack_counts
from vtk.sinks.base import Row

GOLDEN_RATIO = 0.618033988749895
MASK_OPACITY = 0.45

Color = tuple[int, int, int]


def draw_detections(picture: Image.Image, detections: list[Row]) -> None:
    """Draw masks, boxes, names and scores in place, the best on top; sizes follow the picture's."""
    for item in reversed(detections):
        if "segmentation" in item:
            _tint(picture, item["segmentation"], class_color(item["class_id"]))
    draw = ImageDraw.Draw(picture)
    line = max(2, round(min(picture.size) / 300))
    font = ImageFont.load_default(size=max(10, round(min(picture.size) / 40)))
    for item in reversed(detections):
        color = class_color(item["class_id"])
        left, top, right, bottom = item["bbox_xyxy"]
        draw.rectangle((min(left, right), min(top, bottom), max(left, right), max(top, bottom)), None, color, line)
        _draw_label(draw, f"{item['name']} {item['score']:.2f}", (left, top), color, font)


def _tint(picture: Image.Image, segmentation: Row, color: Color) -> None:
    """Lay the mask's color over its pixels; only the rectangle that holds them is touched."""
    height, width = segmentation["size"]
    mask, left, top = paint_tight(unpack_counts(segmentation["counts"].encode("ascii")), (height, width))
    if mask.size:
        part = picture.crop((left, top, left + mask.shape[1], top + mask.shape[0]))
        tinted = Image.blend(part, Image.new(picture.mode, part.size, color), MASK_OPACITY)
        picture.paste(tinted, (left, top), Image.fromarray(np.ascontiguousarray(mask)))


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
