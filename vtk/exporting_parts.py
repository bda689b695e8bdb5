"""What the export of a model in parts does of its own: tokenizer, golden data on prompts, verification part by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from vtk.bundle import file_sha256
from vtk.engines.base import Array
from vtk.exporters.load import LoadedModel
from vtk.parts_answers import PartsAnswers, PromptShares
from vtk.parts_clicks import GoldenClicks
from vtk.parts_golden import PartsGolden, write_parts_golden
from vtk.preprocess.decode import decode
from vtk.reference import difference
from vtk.segmenting.predictor import POINT_DECODER
from vtk.segmenting.tokenizer import ClipTokenizer, read_tokenizer
from vtk.segmenting.tokenizer_files import FOLDER, write_tokenizer

# Each costs three runs of the image encoder.
MAX_PICTURES = 2
# Text alone, and text with an example and a counterexample.
_PROMPTS = (
    PromptShares("person"),
    PromptShares("visual", ((0.25, 0.3, 0.55, 0.7),), ((0.6, 0.2, 0.8, 0.4),)),
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
    reference, spec = PartsReference(loaded), loaded.spec
    answers = PartsAnswers(
        reference.run,
        tokenizer,
        _PROMPTS,
        reference.clicks,
        recipe=spec.recipe,
        post=spec.post,
        config=spec.config,
    )
    pictures = []
    for file in files:
        progress(f"reference outputs of {file.name}")
        pictures.append(answers.picture(file.name, file.read_bytes(), decode(file)))
    made_by = {"torch": str(torch.__version__)}
    facts = reference.max_difference, spec.recipe.digest, made_by
    return PartsGolden(tuple(pictures), answers.golden_prompts(), *facts, reference.clicks)


class PartsReference:
    """The source model in torch, part by part; arrays keep their batch dimension of 1.

    Every call of `run` runs twice: max_difference is the largest that two runs were ever apart.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.max_difference = 0.0
        self._parts = {part.name: part for part in loaded.spec.parts}
        self.clicks = _CLICKS if POINT_DECODER in self._parts else ()

    def run(self, part: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs of one part by name."""
        outputs = self.once(part, feeds)
        self.max_difference = max(self.max_difference, difference(outputs, self.once(part, feeds)))
        return outputs

    def once(self, part: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The same without the second run."""
        spec = self._parts[part]
        inputs = [torch.from_numpy(np.ascontiguousarray(feeds[item.name])) for item in spec.inputs]
        with torch.inference_mode():
            outputs = self.loaded.part(part)(*inputs)
        return {output.name: tensor.numpy() for output, tensor in zip(spec.outputs, outputs, strict=True)}
