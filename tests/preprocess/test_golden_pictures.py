"""Files → decode → preprocess, against what the official pipeline fed to the toy detector."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vtk.assets import sample_pictures
from vtk.preprocess.apply import preprocess
from vtk.preprocess.decode import decode
from vtk.preprocess.recipe import Recipe


def test_toy_pictures_become_the_official_inputs_bit_for_bit(golden: Path) -> None:
    """The digests are of `uint8 (3, 128, 128)` after the official resize; EXIF, gray and RGBA files are among them."""
    digests = json.loads((golden / "toy_input_sha256.json").read_text())
    assert len(digests) == 24
    wrong = []
    for name, digest in digests.items():
        tensor = preprocess(decode(golden / "toy_images" / name), Recipe((128, 128))).tensor
        levels = np.rint(tensor * 255).astype(np.uint8)
        np.testing.assert_array_equal(tensor, levels.astype(np.float32) / np.float32(255))
        if hashlib.sha256(levels.tobytes()).hexdigest() != digest:
            wrong.append(name)
    assert wrong == []


def test_boxes_of_the_toy_pictures_refer_to_the_upright_picture(golden: Path) -> None:
    for entry in json.loads((golden / "toy_annotations.json").read_text())["images"]:
        picture = decode(golden / "toy_images" / entry["file_name"])
        assert picture.shape == (entry["height"], entry["width"], 3)


@pytest.mark.parametrize("path", sample_pictures(), ids=lambda path: path.name)
def test_sample_pictures_are_small_and_decode(path: Path) -> None:
    assert path.stat().st_size <= 60_000
    picture = decode(path)
    assert min(picture.shape[:2]) >= 100
    assert picture.std() > 20
    assert f"`{path.name}`" in (path.parent / "README.md").read_text(encoding="utf-8")


def test_sample_pictures_cover_png_jpeg_and_a_rotated_file() -> None:
    pictures = sample_pictures()
    assert len(pictures) == 4
    assert {path.suffix for path in pictures} == {".jpg", ".png"}
    rotated = next(path for path in pictures if "exif6" in path.name)
    with Image.open(rotated) as stored:
        assert stored.getexif()[274] == 6
        assert decode(rotated).shape[:2] == stored.size
