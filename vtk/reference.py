"""The source model in torch: what it gives for a tensor, and the golden data that a bundle keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vtk.bundle import Bundle
from vtk.engines.base import Array
from vtk.errors import UsageError
from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.checkpoint_head import join_head
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import LoadedModel, load_model
from vtk.golden import Golden, GoldenPicture, pixels_sha256
from vtk.postprocess.api import postprocess
from vtk.preprocess.apply import preprocess
from vtk.preprocess.decode import decode


def reference_rows(loaded: LoadedModel, tensors: Sequence[npt.NDArray[np.float32]]) -> list[dict[str, Array]]:
    """Raw outputs of the source model for tensors (3, H, W), one picture at a time, without batch dimension."""
    return [_run(loaded, tensor) for tensor in tensors]


def make_golden(loaded: LoadedModel, files: Sequence[Path], progress: Callable[[str], None]) -> Golden:
    """Carry pictures through every stage of the source model; each runs twice, to know that the model repeats itself.

    Raises ImageError for a picture that cannot be decoded.
    """
    pictures: list[GoldenPicture] = []
    apart = 0.0
    for file in files:
        progress(f"reference outputs of {file.name}")
        picture = _golden_picture(loaded, file)
        apart = max(apart, difference(picture.outputs, _run(loaded, picture.tensor)))
        pictures.append(picture)
    return Golden(tuple(pictures), apart, loaded.spec.recipe.digest, {"torch": str(torch.__version__)})


def load_source(bundle: Bundle, checkpoint: Path) -> LoadedModel:
    """The model of a bundle from its source checkpoint, with the options of the export.

    Raises UsageError when the tensors are not those that the bundle was made from.
    """
    source = bundle.manifest.source
    options = options_from_json(source["options"])
    found = join_head(read_checkpoint(checkpoint, weights=source["weights"]), options.head)
    if found.tensor_digest != source["tensor_digest"]:
        raise UsageError(
            f"{checkpoint} is not the source of {bundle.root}: tensor digest {found.tensor_digest[:12]}…, "
            f"expected {source['tensor_digest'][:12]}… ({source['name']}).",
            hint="Pass the checkpoint that was exported.",
        )
    return load_model(found, options)


def options_to_json(options: FamilyOptions) -> dict[str, Any]:
    """What the user decided, for the manifest."""
    return asdict(options)


def options_from_json(data: Mapping[str, Any]) -> FamilyOptions:
    """The inverse of `options_to_json`, after JSON has turned tuples into lists."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return FamilyOptions(**values)


def _golden_picture(loaded: LoadedModel, file: Path) -> GoldenPicture:
    spec = loaded.spec
    pixels = decode(file)
    prepared = preprocess(pixels, spec.recipe)
    outputs = _run(loaded, prepared.tensor)
    result = postprocess(outputs, prepared.geometry, spec.post, grid_hw=spec.config.get("grid_hw"))
    return GoldenPicture(file.name, file.read_bytes(), pixels_sha256(pixels), prepared.tensor, outputs, result)


def _run(loaded: LoadedModel, tensor: npt.NDArray[np.float32]) -> dict[str, Array]:
    with torch.inference_mode():
        outputs = loaded.wrapper(torch.from_numpy(tensor)[None])
    return {spec.name: output[0].numpy() for spec, output in zip(loaded.spec.outputs, outputs, strict=True)}


def difference(first: Mapping[str, Array], second: Mapping[str, Array]) -> float:
    """Largest absolute difference; NaN and unequal infinities count as infinite."""
    if all(np.array_equal(first[name], second[name]) for name in first):
        return 0.0
    gaps = [np.abs(np.asarray(first[name], np.float64) - np.asarray(second[name], np.float64)).max() for name in first]
    return float(np.nan_to_num(max(gaps), nan=np.inf))
