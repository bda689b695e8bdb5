"""What the export of a model in parts does of its own: tokenizer, golden data on prompts, verification part by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from vtk.bundle import file_sha256
from vtk.engines.base import Array
from vtk.exporters.load import LoadedModel
from vtk.golden import pixels_sha256
from vtk.parts_clicks import GoldenClicks, GoldenMasks
from vtk.parts_golden import (
    GoldenAnswer,
    GoldenPrompt,
    PartsGolden,
    PartsPicture,
    answer_of,
    best_found,
    masks_of,
    prompt_on,
    sample,
    write_parts_golden,
)
from vtk.postprocess.segment import segment_detections
from vtk.preprocess.apply import preprocess
from vtk.preprocess.decode import decode
from vtk.preprocess.geometry import Geometry
from vtk.reference import difference
from vtk.segmenting.clicks import point_slots
from vtk.segmenting.predictor import DECODER, IMAGE_ENCODER, POINT_DECODER, TEXT_ENCODER
from vtk.segmenting.prompts import box_slots
from vtk.segmenting.tokenizer import ClipTokenizer, Tokens, read_tokenizer
from vtk.segmenting.tokenizer_files import FOLDER, write_tokenizer

# Each costs three runs of the image encoder.
MAX_PICTURES = 2
# Text alone, and text with an example and a counterexample, as shares of the picture.
_PROMPTS: tuple[tuple[str, tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]], ...] = (
    ("person", (), ()),
    ("visual", ((0.25, 0.3, 0.55, 0.7),), ((0.6, 0.2, 0.8, 0.4),)),
)
# One point, and points with a box, of a model that takes them.
_CLICKS = (
    GoldenClicks(((0.5, 0.5),), (1,), None),
    GoldenClicks(((0.4, 0.45), (0.7, 0.25)), (1, 0), (0.25, 0.3, 0.6, 0.75)),
)


def complete_parts(
    staging: Path, loaded: LoadedModel, pictures: Sequence[Path], progress: Callable[[str], None]
) -> dict[str, str]:
    """Write the tokenizer and the golden data into a staged bundle; SHA-256 by file.

    Raises CheckpointError for tokenizer files that are not CLIP's, ImageError for a picture that does not decode.
    """
    source = loaded.checkpoint.path
    names = write_tokenizer(staging, source if source.is_dir() else None)
    tokenizer = read_tokenizer(staging / FOLDER, context_length=loaded.spec.config["context_length"])
    golden = make_parts_golden(loaded, tokenizer, pictures, progress)
    return {**{name: file_sha256(staging / name) for name in names}, **write_parts_golden(staging, golden)}


def make_parts_golden(
    loaded: LoadedModel, tokenizer: ClipTokenizer, files: Sequence[Path], progress: Callable[[str], None]
) -> PartsGolden:
    """Carry pictures and prompts through every part of the source model, each twice."""
    reference = PartsReference(loaded)
    tokens = [tokenizer(text) for text, _, _ in _PROMPTS]
    texts = [reference.text(item) for item in tokens]
    pictures = []
    for file in files:
        progress(f"reference outputs of {file.name}")
        pictures.append(_picture(reference, file, tokens, texts))
    prompts = [
        GoldenPrompt(text, boxes, negative, item.input_ids, {name: sample(array[0]) for name, array in row.items()})
        for (text, boxes, negative), item, row in zip(_PROMPTS, tokens, texts, strict=True)
    ]
    made_by = {"torch": str(torch.__version__)}
    facts = reference.max_difference, loaded.spec.recipe.digest, made_by
    return PartsGolden(tuple(pictures), tuple(prompts), *facts, reference.clicks)


class PartsReference:
    """The source model in torch, part by part; arrays keep their batch dimension of 1.

    Every call runs twice: max_difference is the largest that two runs were ever apart.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.max_difference = 0.0
        self._parts = {part.name: part for part in loaded.spec.parts}
        self.clicks = _CLICKS if POINT_DECODER in self._parts else ()

    def run(self, part: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs of one part by name."""
        outputs = self._once(part, feeds)
        self.max_difference = max(self.max_difference, difference(outputs, self._once(part, feeds)))
        return outputs

    def text(self, tokens: Tokens) -> dict[str, Array]:
        """Outputs of the text encoder."""
        return self.run(TEXT_ENCODER, {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask})

    def _once(self, part: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
        spec = self._parts[part]
        inputs = [torch.from_numpy(np.ascontiguousarray(feeds[item.name])) for item in spec.inputs]
        with torch.inference_mode():
            outputs = self.loaded.part(part)(*inputs)
        return {output.name: tensor.numpy() for output, tensor in zip(spec.outputs, outputs, strict=True)}


def _picture(
    reference: PartsReference, file: Path, tokens: Sequence[Tokens], texts: Sequence[Mapping[str, Array]]
) -> PartsPicture:
    pixels = decode(file)
    prepared = preprocess(pixels, reference.loaded.spec.recipe)
    features = reference.run(IMAGE_ENCODER, {"images": prepared.tensor[None]})
    answers = [
        _answer(reference, features, number, tokens[number], texts[number], prepared.geometry)
        for number in range(len(_PROMPTS))
    ]
    return PartsPicture(
        name=file.name,
        data=file.read_bytes(),
        pixels_sha256=pixels_sha256(pixels),
        tensor=prepared.tensor,
        features={name: sample(array[0]) for name, array in features.items()},
        answers=tuple(answers),
        clicked=tuple(_masks(reference, features, clicks, prepared.geometry) for clicks in reference.clicks),
    )


def _masks(
    reference: PartsReference, features: Mapping[str, Array], clicks: GoldenClicks, geometry: Geometry
) -> GoldenMasks:
    slots = point_slots(clicks.on(geometry), geometry, reference.loaded.spec.config["point_slots"])
    outputs = reference.run(POINT_DECODER, {**features, "points": slots.points, "point_labels": slots.labels})
    return masks_of({name: array[0] for name, array in outputs.items()})


def _answer(
    reference: PartsReference,
    features: Mapping[str, Array],
    number: int,
    tokens: Tokens,
    text: Mapping[str, Array],
    geometry: Geometry,
) -> GoldenAnswer:
    spec = reference.loaded.spec
    slots = box_slots(prompt_on(*_PROMPTS[number], geometry), geometry, spec.config["box_slots"])
    feeds = {**features, **text, "attention_mask": tokens.attention_mask, "boxes": slots.boxes}
    outputs = reference.run(DECODER, {**feeds, "box_labels": slots.labels})
    rows = {name: array[0] for name, array in outputs.items()}
    return answer_of(rows, segment_detections(rows, geometry, best_found(spec.post), None))
