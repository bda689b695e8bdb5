"""Golden data of a model in parts: what each part of the source model gave on a few pictures and prompts.

Feature maps are large, so of every array at most SAMPLE values are kept, spread over the whole of it; masks are kept
whole, one bit for each pixel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.bundle import file_sha256, write_json_atomic
from vtk.engines.base import Array
from vtk.errors import BundleError, UsageError
from vtk.golden import GOLDEN_DIR, UNREADABLE, picture_file, read_arrays
from vtk.parts_clicks import GoldenClicks, GoldenMasks, read_clicks
from vtk.postprocess.points import MASKS as POINT_MASKS
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections
from vtk.postprocess.segment import MASKS
from vtk.preprocess.geometry import Geometry
from vtk.result_json import result_from_json, result_to_json
from vtk.segmenting.prompts import Prompt

SAMPLE = 1 << 18
BEST = 8
_INDEX = "golden.json"
_ARRAYS = "stages.npz"
_MASK_BITS = "mask_bits"


@dataclass(frozen=True, eq=False)
class GoldenPrompt:
    """A prompt for any picture. boxes, negative_boxes: left, top, right, bottom as shares of the picture.

    input_ids: (1, L) int64, what the tokenizer made of the text. features: sampled outputs of the text encoder.
    """

    text: str
    boxes: tuple[tuple[float, ...], ...]
    negative_boxes: tuple[tuple[float, ...], ...]
    input_ids: npt.NDArray[np.int64]
    features: Mapping[str, Array]

    @property
    def name(self) -> str:
        """For reports."""
        count = len(self.boxes) + len(self.negative_boxes)
        return f"'{self.text}'" + (f" and {count} boxes" if count else "")

    def on(self, geometry: Geometry) -> Prompt:
        """The prompt in pixels of one picture."""
        return prompt_on(self.text, self.boxes, self.negative_boxes, geometry)


@dataclass(frozen=True, eq=False)
class GoldenAnswer:
    """What the decoder gave for one prompt on one picture.

    outputs: sampled, without batch dimension. mask_bits: packed `masks > 0` of every query, a row for each. result: as
    `best_found` says.
    """

    outputs: Mapping[str, Array]
    mask_bits: npt.NDArray[np.uint8]
    result: Detections


@dataclass(frozen=True, eq=False)
class PartsPicture:
    """data: the file's bytes. tensor: (3, H, W) float32. features: sampled outputs of the image encoder."""

    name: str
    data: bytes
    pixels_sha256: str
    tensor: npt.NDArray[np.float32]
    features: Mapping[str, Array]
    answers: tuple[GoldenAnswer, ...]
    clicked: tuple[GoldenMasks, ...] = ()


@dataclass(frozen=True, eq=False)
class PartsGolden:
    """max_difference: between two runs of the reference. recipe_sha256: of the preprocess recipe.

    clicks: none where the model takes no points.
    """

    pictures: tuple[PartsPicture, ...]
    prompts: tuple[GoldenPrompt, ...]
    max_difference: float
    recipe_sha256: str
    made_by: Mapping[str, str]
    clicks: tuple[GoldenClicks, ...] = ()


def prompt_on(
    text: str, boxes: Sequence[Sequence[float]], negative_boxes: Sequence[Sequence[float]], geometry: Geometry
) -> Prompt:
    """Boxes as shares of the picture become boxes in its pixels."""
    height, width = geometry.source_hw
    scale = (width, height, width, height)

    def in_pixels(items: Sequence[Sequence[float]]) -> tuple[tuple[float, float, float, float], ...]:
        scaled = (tuple(share * side for share, side in zip(box, scale, strict=True)) for box in items)
        return tuple((left, top, right, bottom) for left, top, right, bottom in scaled)

    return Prompt(text, in_pixels(boxes), in_pixels(negative_boxes))


def sample(array: Array) -> Array:
    """At most SAMPLE values of an array, evenly spread; all of a smaller one, in its shape.

    The step is a prime, so that it shares no factor with the sides and every row and column is met.
    """
    if array.size <= SAMPLE:
        return array
    return array.reshape(-1)[:: _prime_from(-(-array.size // SAMPLE))]


def best_found(post: PostRecipe) -> PostRecipe:
    """The recipe of golden results: the best few, whatever their scores, so that there is always something to see."""
    return replace(post, score_threshold=0.0, max_detections=BEST)


def mask_bits(masks: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Masks (Q, h, w) as logits to (Q, bytes)."""
    return np.packbits(masks.reshape(len(masks), -1) > 0, axis=1)


def answer_of(outputs: Mapping[str, Array], result: Detections) -> GoldenAnswer:
    """From raw outputs without batch dimension."""
    masks = outputs[MASKS].astype(np.float32, copy=False)
    return GoldenAnswer({name: sample(array) for name, array in outputs.items()}, mask_bits(masks), result)


def masks_of(outputs: Mapping[str, Array]) -> GoldenMasks:
    """From raw outputs of the point decoder without batch dimension."""
    masks = outputs[POINT_MASKS].astype(np.float32, copy=False)
    return GoldenMasks({name: sample(array) for name, array in outputs.items()}, mask_bits(masks))


def write_parts_golden(root: Path, golden: PartsGolden) -> dict[str, str]:
    """Write `golden/` into the bundle folder; returns SHA-256 by file, relative to `root`."""
    folder = root / GOLDEN_DIR
    folder.mkdir()
    files = [picture_file(index, picture.name) for index, picture in enumerate(golden.pictures)]
    for file, picture in zip(files, golden.pictures, strict=True):
        (folder / file).write_bytes(picture.data)
    np.savez_compressed(folder / _ARRAYS, allow_pickle=False, **_arrays(golden))
    index = {
        "max_difference": golden.max_difference,
        "recipe_sha256": golden.recipe_sha256,
        "made_by": dict(golden.made_by),
        "prompts": [
            {"text": prompt.text, "boxes": prompt.boxes, "negative_boxes": prompt.negative_boxes}
            for prompt in golden.prompts
        ],
        "clicks": [asdict(clicks) for clicks in golden.clicks],
        "pictures": [
            {
                "file": file,
                "name": picture.name,
                "pixels_sha256": picture.pixels_sha256,
                "results": [result_to_json(answer.result) for answer in picture.answers],
            }
            for file, picture in zip(files, golden.pictures, strict=True)
        ],
    }
    write_json_atomic(folder / _INDEX, index)
    return {f"{GOLDEN_DIR}/{name}": file_sha256(folder / name) for name in (*files, _ARRAYS, _INDEX)}


def read_parts_golden(root: Path) -> PartsGolden:
    """Raises BundleError when the data is missing or not what `write_parts_golden` writes."""
    folder = root / GOLDEN_DIR
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        arrays = read_arrays(folder / _ARRAYS)
        prompts = tuple(_prompt(arrays, number, item) for number, item in enumerate(index["prompts"]))
        clicks = tuple(read_clicks(item) for item in index.get("clicks", ()))
        listed = enumerate(index["pictures"])
        pictures = tuple(_picture(folder, arrays, number, item, len(clicks)) for number, item in listed)
        if not pictures or not prompts or any(len(picture.answers) != len(prompts) for picture in pictures):
            raise ValueError("it needs a picture, a prompt, and an answer for each pair")
        facts = float(index["max_difference"]), str(index["recipe_sha256"]), dict(index["made_by"])
        return PartsGolden(pictures, prompts, *facts, clicks)
    except (*UNREADABLE, UsageError) as error:
        raise BundleError(
            f"The golden data in {folder} cannot be read: {type(error).__name__}: {error}.",
            hint="Copy the bundle again, or export again.",
        ) from error


def _arrays(golden: PartsGolden) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for number, prompt in enumerate(golden.prompts):
        arrays[f"prompt{number}.ids"] = prompt.input_ids
        arrays |= _prefixed(f"prompt{number}.output.", prompt.features)
    for number, picture in enumerate(golden.pictures):
        arrays[f"picture{number}.input"] = picture.tensor
        arrays |= _prefixed(f"picture{number}.output.", picture.features)
        for asked, answer in enumerate(picture.answers):
            arrays |= _prefixed(f"picture{number}.prompt{asked}.output.", answer.outputs)
            arrays[f"picture{number}.prompt{asked}.{_MASK_BITS}"] = answer.mask_bits
        for asked, masks in enumerate(picture.clicked):
            arrays |= _prefixed(f"picture{number}.clicks{asked}.output.", masks.outputs)
            arrays[f"picture{number}.clicks{asked}.{_MASK_BITS}"] = masks.mask_bits
    return arrays


def _prefixed(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {prefix + name: array for name, array in arrays.items()}


def _below(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _prompt(arrays: Mapping[str, Array], number: int, item: Mapping[str, Any]) -> GoldenPrompt:
    text = str(item["text"])
    asked = Prompt(text, item["boxes"], item["negative_boxes"])
    ids = arrays[f"prompt{number}.ids"].astype(np.int64)
    features = _below(f"prompt{number}.output.", arrays)
    return GoldenPrompt(text, asked.boxes_xyxy, asked.negative_boxes_xyxy, ids, features)


def _picture(
    folder: Path, arrays: Mapping[str, Array], number: int, item: Mapping[str, Any], num_clicks: int
) -> PartsPicture:
    if Path(item["file"]).name != item["file"]:
        raise ValueError(f"it names '{item['file']}', which is no file of this folder")
    return PartsPicture(
        name=str(item["name"]),
        data=(folder / item["file"]).read_bytes(),
        pixels_sha256=item["pixels_sha256"],
        tensor=arrays[f"picture{number}.input"].astype(np.float32),
        features=_below(f"picture{number}.output.", arrays),
        answers=tuple(
            _answer(arrays, f"picture{number}.prompt{asked}", data) for asked, data in enumerate(item["results"])
        ),
        clicked=tuple(_masks(arrays, f"picture{number}.clicks{asked}") for asked in range(num_clicks)),
    )


def _answer(arrays: Mapping[str, Array], prefix: str, data: Mapping[str, Any]) -> GoldenAnswer:
    result = result_from_json(data)
    if not isinstance(result, Detections):
        raise ValueError("an answer is no detections")
    bits = arrays[f"{prefix}.{_MASK_BITS}"].astype(np.uint8)
    return GoldenAnswer(_below(f"{prefix}.output.", arrays), bits, result)


def _masks(arrays: Mapping[str, Array], prefix: str) -> GoldenMasks:
    bits = arrays[f"{prefix}.{_MASK_BITS}"].astype(np.uint8)
    return GoldenMasks(_below(f"{prefix}.output.", arrays), bits)


def _prime_from(number: int) -> int:
    """The smallest prime that is at least `number`."""
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number
