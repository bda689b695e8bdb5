"""Embeddings as one NumPy archive per picture."""

from __future__ import annotations

import numpy as np

from vtk.postprocess.results import Embeddings
from vtk.sinks.base import OutputFolder, Record, Sink

FOLDER = "npz"


class NpzSink(Sink):
    """`npz/NAME.npz` with `pooled` (D,), `resolution_wh` (2,) and, if asked for, `patches` (h, w, D)."""

    def __init__(self, out: OutputFolder, *, patches: bool) -> None:
        self.out = out
        self.patches = patches

    def write(self, record: Record) -> None:
        result = record.result
        assert isinstance(result, Embeddings)
        size = np.array(result.resolution_wh)
        with self.out.replace(f"{FOLDER}/{record.item.output}.npz") as stream:
            if self.patches and result.patches is not None:
                np.savez(stream, pooled=result.pooled, resolution_wh=size, patches=result.patches)
            else:
                np.savez(stream, pooled=result.pooled, resolution_wh=size)
