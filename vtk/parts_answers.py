"""What the parts of a model give for a picture and its prompts, whoever runs them: the source model or engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from vtk.engines.base import Array
from vtk.golden import pixels_sha256
from vtk.parts_clicks import GoldenClicks, GoldenMasks
from vtk.parts_golden import (
    GoldenAnswer,
    GoldenPrompt,
    PartsPicture,
    answer_of,
    best_found,
    masks_of,
    prompt_on,
    sample,
)
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.segment import segment_detections
from vtk.preprocess.apply import preprocess
from vtk.preprocess.geometry import Geometry
from vtk.preprocess.recipe import Recipe
from vtk.preprocess.resize import RGBImage
from vtk.segmenting.clicks import point_slots
from vtk.segmenting.predictor import DECODER, IMAGE_ENCODER, POINT_DECODER, TEXT_ENCODER
from vtk.segmenting.prompts import box_slots
from vtk.segmenting.tokenizer import ClipTokenizer

# Part and feeds (which may hold more than it takes) to its outputs, all with a batch dimension of 1.
RunPart: TypeAlias = Callable[[str, Mapping[str, Array]], dict[str, Array]]
Boxes: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class PromptShares:
    """A prompt for any picture: its text, and boxes and counterexamples as shares of the picture."""

    text: str
    boxes: Boxes = ()
    negative_boxes: Boxes = ()


class PartsAnswers:
    """Asks a model the same prompts and points about one picture after the other."""

    def __init__(
        self,
        run: RunPart,
        tokenizer: ClipTokenizer,
        prompts: Sequence[PromptShares],
        clicks: Sequence[GoldenClicks],
        *,
        recipe: Recipe,
        post: PostRecipe,
        config: Mapping[str, object],
    ) -> None:
        """config: of the model, for its numbers of slots. Runs the text encoder once for each prompt."""
        self.prompts = tuple(prompts)
        self.clicks = tuple(clicks)
        self._run = run
        self._recipe, self._post, self._config = recipe, post, config
        self._tokens = [tokenizer(prompt.text) for prompt in prompts]
        self._texts = [
            run(TEXT_ENCODER, {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask})
            for tokens in self._tokens
        ]

    def golden_prompts(self) -> tuple[GoldenPrompt, ...]:
        """The prompts with what the text encoder gave."""
        return tuple(
            GoldenPrompt(
                prompt.text,
                prompt.boxes,
                prompt.negative_boxes,
                tokens.input_ids,
                {name: sample(array[0]) for name, array in text.items()},
            )
            for prompt, tokens, text in zip(self.prompts, self._tokens, self._texts, strict=True)
        )

    def picture(self, name: str, data: bytes, pixels: RGBImage) -> PartsPicture:
        """Everything that the model gives for one picture, sampled. data: kept as it is."""
        prepared = preprocess(pixels, self._recipe)
        features = self._run(IMAGE_ENCODER, {"images": prepared.tensor[None]})
        return PartsPicture(
            name=name,
            data=data,
            pixels_sha256=pixels_sha256(pixels),
            tensor=prepared.tensor,
            features={name: sample(array[0]) for name, array in features.items()},
            answers=tuple(self._answer(features, number, prepared.geometry) for number in range(len(self.prompts))),
            clicked=tuple(self._masks(features, clicks, prepared.geometry) for clicks in self.clicks),
        )

    def _answer(self, features: Mapping[str, Array], number: int, geometry: Geometry) -> GoldenAnswer:
        prompt, tokens = self.prompts[number], self._tokens[number]
        asked = prompt_on(prompt.text, prompt.boxes, prompt.negative_boxes, geometry)
        slots = box_slots(asked, geometry, self._slots("box_slots"))
        feeds = {**features, **self._texts[number], "attention_mask": tokens.attention_mask}
        outputs = self._run(DECODER, {**feeds, "boxes": slots.boxes, "box_labels": slots.labels})
        rows = {name: array[0] for name, array in outputs.items()}
        return answer_of(rows, segment_detections(rows, geometry, best_found(self._post), None))

    def _masks(self, features: Mapping[str, Array], clicks: GoldenClicks, geometry: Geometry) -> GoldenMasks:
        slots = point_slots(clicks.on(geometry), geometry, self._slots("point_slots"))
        outputs = self._run(POINT_DECODER, {**features, "points": slots.points, "point_labels": slots.labels})
        return masks_of({name: array[0] for name, array in outputs.items()})

    def _slots(self, name: str) -> int:
        count = self._config[name]
        assert isinstance(count, int)
        return count
