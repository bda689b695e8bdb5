"""What a bundle keeps of its source model."""

from typing import cast

import pytest
import torch
from torch import nn

from vtk.assets import sample_pictures
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import Family, ModelSpec, OutputSpec
from vtk.exporters.load import LoadedModel, LoadReport
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe
from vtk.reference import make_golden


class Drifting(nn.Module):
    """Channel means, which move by `step` from call to call."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.step, self.calls = step, 0

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        self.calls += 1
        return (images.mean((2, 3)) + self.calls * self.step,)


def loaded(wrapper: nn.Module) -> LoadedModel:
    outputs = (OutputSpec("cls", "embedding", 1e-4),)
    spec = ModelSpec("tiny", "S", "tiny", "embed", {}, (8, 8), Recipe((8, 8)), PostRecipe("embed"), outputs)
    return LoadedModel(cast(Family, None), spec, wrapper, LoadReport(0, 0, (), ()), cast(Checkpoint, None))


@pytest.mark.parametrize("step", [0.0, 0.012])
def test_golden_data_tell_how_far_two_runs_of_the_source_are_apart(step: float) -> None:
    """Verify reports this first, before it accuses the graph."""
    golden = make_golden(loaded(Drifting(step)), sample_pictures(), lambda text: None)
    assert golden.max_difference == pytest.approx(step, abs=1e-6)
    assert len(golden.pictures) == len(sample_pictures())
