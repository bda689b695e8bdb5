"""The reduced SAM3 in both layouts, and what the official program makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import LoadedModel, load_model

Arrays = Mapping[str, np.ndarray[Any, Any]]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="session")
def expected(golden_dir: Path) -> Arrays:
    with np.load(golden_dir / "sam3_small_expected.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="session")
def config(golden_dir: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((golden_dir / "sam3_small_config.json").read_text())
    return data


@pytest.fixture(scope="session")
def official(golden_dir: Path) -> Tensors:
    """Tensors of the official file, under its own names."""
    part: Tensors = torch.load(golden_dir / "sam3_small.pt", weights_only=True)["model"]
    return part


@pytest.fixture(scope="session")
def hf(golden_dir: Path) -> Tensors:
    return load_file(golden_dir / "sam3_small.safetensors")


@pytest.fixture(scope="session")
def load(make_checkpoint: Callable[..., Checkpoint], config: dict[str, Any]) -> Callable[..., LoadedModel]:
    """A model from tensors, with the golden config beside them unless told otherwise."""

    def loaded(tensors: Tensors, *, stated: dict[str, Any] | None = config, **options: Any) -> LoadedModel:
        return load_model(make_checkpoint(tensors, name="sam3.pt", config=stated), FamilyOptions(**options))

    return loaded


@pytest.fixture(scope="session")
def official_model(load: Callable[..., LoadedModel], official: Tensors) -> LoadedModel:
    return load(official)


@pytest.fixture(scope="session")
def hf_model(load: Callable[..., LoadedModel], hf: Tensors) -> LoadedModel:
    return load(hf)


@pytest.fixture(scope="session")
def answer() -> Callable[..., Tensors]:
    """All outputs of the decoder for a picture, token ids and boxes, the parts chained in torch."""

    def run(
        model: LoadedModel,
        expected: Arrays,
        *,
        ids: str = "input_ids_official_pad0",
        boxes: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> Tensors:
        images = torch.from_numpy(expected["pixel_uint8"]).float() / 127.5 - 1
        mask = torch.from_numpy(expected["attention_mask"])
        slots, marks = torch.zeros(1, 8, 4), torch.full((1, 8), -10)
        if boxes is not None and labels is not None:
            slots[:, : boxes.shape[1]], marks[:, : boxes.shape[1]] = boxes, labels
        with torch.inference_mode():
            maps = model.part("image_encoder")(images)
            (text,) = model.part("text_encoder")(torch.from_numpy(expected[ids]), mask)
            outputs = model.part("decoder")(*maps, text, mask, slots, marks)
        return {spec.name: value for spec, value in zip(model.spec.outputs, outputs, strict=True)}

    return run
