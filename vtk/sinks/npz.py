"""Embeddings as one NumPy archive per picture, and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vtk.naming import found_path
from vtk.postprocess.results import Embeddings
from vtk.sinks.base import OutputFolder, Record, Row, Sink

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

    def recall(self, place: int, row: Row) -> Embeddings | None:
        path = archive_of(self.out.root, row)
        return read_npz(path) if path.exists() else None


def archive_of(root: Path, row: Row) -> Path:
    """Where the job in `root` has put the values of a row."""
    return found_path(str(root / FOLDER / f"{row['output']}.npz"))


def read_npz(path: Path) -> Embeddings:
    """The value of an archive that `NpzSink` wrote."""
    with np.load(path, allow_pickle=False) as archive:
        width, height = archive["resolution_wh"]
        patches = archive.get("patches")
        return Embeddings(archive["pooled"], patches, (int(width), int(height)))
