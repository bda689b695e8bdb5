"""What `benchmarks/full_size.py` exports is in the layout of the official files and differs from picture to picture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import load_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "full_size_weights.py"
FAMILIES = {"sam3": "sam3", "dinov3-l": "dinov3-vit", "dinov3-7b": "dinov3-vit", "rtdetrv2-r101": "rtdetrv2"}


@pytest.mark.parametrize("name", FAMILIES)
def test_small_ones_are_official_files_that_load_whole(name: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    subprocess.run([sys.executable, SCRIPT, name, path, "--small"], check=True)
    loaded = load_model(read_checkpoint(path), FamilyOptions())
    assert (loaded.spec.family, loaded.spec.layout) == (FAMILIES[name], "official")
    assert loaded.report.missing == loaded.report.unexpected == ()
    if name == "sam3":  # without a config.json beside it
        assert "point_decoder" in [part.name for part in loaded.spec.parts]
        return
    first, second = (
        torch.rand(1, 3, *loaded.spec.input_hw, generator=torch.Generator().manual_seed(s)) for s in (0, 1)
    )
    with torch.inference_mode():
        for one, other in zip(loaded.wrapper(first), loaded.wrapper(second), strict=True):
            assert one.isfinite().all()
            if one.shape[1] != 4:  # registers see the picture last
                assert (one - other).abs().max() > 1e-3
                assert one.std() > 1e-2
