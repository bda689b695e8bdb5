"""Dense features on disk are the patch tokens of the source, in row-major order, without class token and registers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from vtk.cli.main import main
from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import load_model
from vtk.preprocess.apply import preprocess
from vtk.preprocess.decode import decode


def test_they_are_the_patches_of_the_source(golden_dir: Path, tmp_path: Path) -> None:
    source, bundle = golden_dir / "dinov3_vit_mlp.pth", tmp_path / "bundle"
    pictures = sorted((golden_dir / "toy_images").iterdir())[:2]
    assert main(["export", str(source), "-o", str(bundle), "--batch", "1", "--size", "64,96"]) == 0
    results = tmp_path / "results"
    assert main(["run", str(bundle), *map(str, pictures), "--patches", "-o", str(results)]) == 0
    rows = pq.read_table(results / "embeddings.parquet").to_pylist()
    loaded = load_model(read_checkpoint(source), FamilyOptions(size_hw=(64, 96)))
    for row, picture in zip(rows, pictures, strict=True):
        images = torch.from_numpy(preprocess(decode(picture), loaded.spec.recipe).tensor)[None]
        with torch.inference_mode():
            tokens = dict(zip([output.name for output in loaded.spec.outputs], loaded.wrapper(images), strict=True))
        assert list(row["grid_hw"]) == [4, 6]
        stored = np.asarray(row["patches"], np.float32).reshape(24, 128)
        assert np.abs(stored - tokens["patches"][0].numpy()).max() < 1e-4
        assert np.abs(stored[0] - tokens["registers"][0, 0].numpy()).max() > 0.1
