"""A small table of embeddings as `vtk run` would make it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from vtk.items import Item
from vtk.postprocess.results import Embeddings
from vtk.sinks.base import OutputFolder, Record, Row
from vtk.sinks.parquet import ParquetSink
from vtk.sinks.rows import to_row

MakeTable = Callable[[npt.NDArray[np.float32]], Path]


@pytest.fixture
def make_table(tmp_path: Path) -> MakeTable:
    """Writes vectors (N, D) as pictures `p/0.jpg`, … through the sink itself."""

    def make(vectors: npt.NDArray[np.float32], model: str = "m" * 64, out: Path = tmp_path / "out") -> Path:
        out.mkdir(exist_ok=True)
        sink = ParquetSink(OutputFolder(out), model=model, patches=False)
        rows: list[Row] = []
        sink.rewind(0, lambda: iter(rows))
        for index, vector in enumerate(vectors):
            item = Item(index, f"p/{index}.jpg", f"{index}.jpg", str(index))
            result = Embeddings(vector, None, (4, 3))
            rows.append(to_row(item, result, sha256=f"{index:064x}", labels=()))
            sink.commit(Record(item, rows[-1], result))
        sink.finish(len(rows), lambda: iter(rows))
        return out / "embeddings.parquet"

    return make
