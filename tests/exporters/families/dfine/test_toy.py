from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, ImageOps

from vtk.exporters.load import LoadedModel
from vtk.postprocess.api import postprocess
from vtk.postprocess.matching import match_queries
from vtk.postprocess.results import Detections
from vtk.preprocess.geometry import geometry_for

Load = Callable[..., LoadedModel]


def official_tensor(path: Path, size: int = 128) -> tuple[torch.Tensor, tuple[int, int]]:
    """Upright RGB, squashed by Pillow's antialiased bilinear, 0..1; and the height and width of the picture."""
    picture = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    pixels = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 255, (picture.height, picture.width)


def detect(loaded: LoadedModel, path: Path) -> Detections:
    images, source_hw = official_tensor(path)
    with torch.inference_mode():
        outputs = loaded.wrapper(images)
    raw = {spec.name: output[0].numpy() for spec, output in zip(loaded.spec.outputs, outputs, strict=True)}
    found = postprocess(raw, geometry_for(loaded.spec.recipe, source_hw), loaded.spec.post)
    assert isinstance(found, Detections)
    return found


def iou(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """(N, 4) and (M, 4) xyxy -> (N, M)."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=-1) for boxes in (a, b)]
    return np.asarray(shared / (areas[0][:, None] + areas[1][None, :] - shared))


def agrees(found: Detections, wanted: list[dict[str, object]]) -> bool:
    """The same detections: equal labels, IoU of at least 0.99, scores within 0.005, none missing, none more."""
    if len(found) != len(wanted):
        return False
    corner = np.array([row["bbox"] for row in wanted], np.float64).reshape(-1, 4)
    boxes = np.concatenate([corner[:, :2], corner[:, :2] + corner[:, 2:]], axis=1)
    scores = np.array([row["score"] for row in wanted], np.float64)
    labels = np.array([row["category_id"] for row in wanted], np.int64)
    same = (iou(found.xyxy, boxes) >= 0.99) & (np.abs(found.scores[:, None] - scores) <= 0.005)
    same &= found.class_ids[:, None] == labels
    return bool(same.any(axis=0).all() and same.any(axis=1).all())


def wrong_pictures(loaded: LoadedModel, golden: Path) -> list[str]:
    """Names of the pictures whose detections are not the expected ones."""
    pictures = json.loads((golden / "toy_annotations.json").read_text())["images"]
    expected = json.loads((golden / "toy_expected.json").read_text())
    wrong = []
    for picture in pictures:
        found = detect(loaded, golden / "toy_images" / picture["file_name"])
        assert found.resolution_wh == (picture["width"], picture["height"])
        if not agrees(found, [row for row in expected if row["image_id"] == picture["id"]]):
            wrong.append(picture["file_name"])
    assert len(pictures) == 24
    return wrong


def test_the_trained_detector_finds_what_the_official_code_finds(golden: Path, load: Load) -> None:
    loaded = load(golden / "toy_deim.pth", family="deim")
    assert loaded.checkpoint.weights == "ema.module"
    assert wrong_pictures(loaded, golden) == []


@pytest.mark.parametrize(("weights", "family"), [("model", "deim"), (None, "dfine")])
def test_raw_weights_and_relu_are_noticed(golden: Path, load: Load, weights: str | None, family: str) -> None:
    """Case V32: both mistakes give plausible detections, so a test must look closely."""
    loaded = load(golden / "toy_deim.pth", weights=weights, family=family)
    assert loaded.checkpoint.weights == (weights or "ema.module")
    assert len(wrong_pictures(loaded, golden)) >= 12


def test_every_number_of_the_toy_is_inferred(golden: Path, load: Load) -> None:
    spec = load(golden / "toy_deim.pth", family="deim").spec
    wanted = {
        "backbone": "B0", "lab": True, "levels": 3, "strides": (8, 16, 32), "in_channels": (256, 512, 1024),
        "hidden": 128, "encoder_ffn": 512, "decoder_ffn": 256, "layers": 2, "heads": 8, "points": (3, 6, 3),
        "classes": 5, "reg_max": 32, "reg_scale": 4.0, "expansion": 0.34, "bottlenecks": 2, "queries": 300,
        "activation": "silu",
    }  # fmt: skip
    assert {key: spec.config[key] for key in wanted} == wanted
    assert (spec.family, spec.variant, spec.input_hw, spec.class_names) == ("deim", "custom", (128, 128), None)


def test_the_full_precision_toy_gives_the_official_outputs_for_every_picture(full_golden: Path, load: Load) -> None:
    loaded = load(full_golden / "toy_deim.pth", family="deim")
    with np.load(full_golden / "toy_raw_outputs.npz") as file:
        images, wanted_logits, wanted_boxes = (file[name] for name in ("input_uint8", "pred_logits", "pred_boxes"))
    with torch.inference_mode():
        logits, boxes = loaded.wrapper(torch.from_numpy(images).float() / 255)
    for row in range(len(images)):
        match = match_queries(logits[row].numpy(), boxes[row].numpy(), wanted_logits[row], wanted_boxes[row])
        assert match.unmatched(box_atol=1e-4, logit_atol=1e-3) == 0


def test_own_pixels_are_those_of_the_stored_inputs(full_golden: Path, golden: Path) -> None:
    with np.load(full_golden / "toy_raw_outputs.npz") as file:
        stored = dict(zip(file["file_names"].tolist(), file["input_uint8"], strict=True))
    for name, pixels in stored.items():
        images, _ = official_tensor(golden / "toy_images" / name)
        assert np.array_equal((images[0] * 255).round().byte().numpy(), pixels)
