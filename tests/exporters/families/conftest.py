from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import LoadedModel, load_model

MakeCheckpoint = Callable[..., Checkpoint]
RunModel = Callable[..., dict[str, torch.Tensor]]


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    return Path(__file__).parents[2] / "data" / "golden"


@pytest.fixture(scope="session")
def make_checkpoint() -> MakeCheckpoint:
    """Tensors as if read from a file called `name`, with the `config.json` of their folder if there is one."""

    def make(
        tensors: Mapping[str, torch.Tensor], *, name: str = "model.pth", config: dict[str, Any] | None = None
    ) -> Checkpoint:
        metadata = {} if config is None else {"config": config}
        return Checkpoint(Path(name), "pth", dict(tensors), "0" * 64, "0" * 64, "flat", ("flat",), metadata=metadata)

    return make


@pytest.fixture(scope="session")
def run_model() -> RunModel:
    """Outputs by name of a checkpoint on normalized images (N, 3, H, W), built for their size."""

    def run(checkpoint: Checkpoint, images: torch.Tensor, **options: Any) -> dict[str, torch.Tensor]:
        return outputs_of(
            load_model(checkpoint, FamilyOptions(size_hw=(images.shape[2], images.shape[3]), **options)), images
        )

    return run


def outputs_of(loaded: LoadedModel, images: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        values = loaded.wrapper(images)
    return {spec.name: value for spec, value in zip(loaded.spec.outputs, values, strict=True)}


@pytest.fixture(scope="session")
def randomize() -> Callable[[torch.nn.Module, int], torch.nn.Module]:
    """Give every parameter a value that matters, so that a lost or swapped one changes the outputs."""

    def fill(module: torch.nn.Module, seed: int) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in module.parameters():
                scale = 1.0 if parameter.ndim == 1 else max(parameter[0].numel(), 1) ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        return module.eval()

    return fill
