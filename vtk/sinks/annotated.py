"""Pictures with their detections drawn on them."""

from __future__ import annotations

import io
from typing import BinaryIO

from PIL import Image

from vtk.preprocess.decode import DecodeOptions, decode
from vtk.sinks.base import OutputFolder, Record, Row, Sink
from vtk.sinks.drawing import draw_detections

FOLDER = "annotated"
JPEG_MAGIC = b"\xff\xd8\xff"
JPEG_QUALITY = 95


class AnnotatedSink(Sink):
    """`annotated/NAME.jpg` for JPEG input and `NAME.png` for all others, upright.

    Where nothing was found, the pixels are the input's: a JPEG is copied, since encoding it again would change them.
    """

    wants_picture = True

    def __init__(self, out: OutputFolder, options: DecodeOptions) -> None:
        self.out = out
        self.options = options

    def write(self, record: Record) -> None:
        data, detections = record.read(), record.row["detections"]
        as_jpeg = data is not None and is_jpeg(data)
        with self.out.replace(f"{FOLDER}/{record.item.output}.{'jpg' if as_jpeg else 'png'}") as stream:
            if as_jpeg and data is not None and not detections:
                stream.write(data)
                return
            picture = Image.fromarray(record.pixels(self.options))
            draw_detections(picture, detections)
            save_picture(stream, picture, as_jpeg=as_jpeg)


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
    save_picture(stream, picture, as_jpeg=is_jpeg(data))


def save_picture(stream: BinaryIO, picture: Image.Image, *, as_jpeg: bool) -> None:
    """As JPEG of high quality, or as PNG without loss. Raises OSError unless all of it could be written."""
    data = io.BytesIO()  # into a file Pillow writes by itself, and does not see that a full disk took only a part
    if as_jpeg:
        picture.save(data, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    else:
        picture.save(data, "PNG", compress_level=1)
    stream.write(data.getbuffer())
