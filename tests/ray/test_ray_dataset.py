"""A bundle as a step of a Ray dataset: the columns hold what the bundle answers, and a bad picture costs no other."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import vtk
from vtk.errors import UsageError
from vtk.postprocess.results import Detections

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None or find_spec("pandas") is None, reason="needs ray: pip install 'vtk-deploy[ray]'"
)
PICTURES = sorted((Path(__file__).parents[1] / "data/golden/toy_images").glob("00*.jpg"))


def test_rows_hold_what_the_model_answers(toy_bundle: Path) -> None:
    import pyarrow as pa

    from vtk.ray.dataset import Answers

    paths = [str(PICTURES[0]), "nothing/here.jpg", str(PICTURES[1])]
    answers = Answers(str(toy_bundle), "path", "ort", "cpu")
    rows = answers(pa.table({"path": paths, "id": [7, 8, 9]})).to_pylist()
    assert [row["id"] for row in rows] == [7, 8, 9]
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert rows[1]["error"].startswith("unreadable: ")
    assert rows[1]["boxes_xyxy"] is None
    with vtk.load(toy_bundle, backend="ort") as model:
        for row in (rows[0], rows[2]):
            wanted = model(row["path"])
            assert isinstance(wanted, Detections)
            assert np.array_equal(np.array(row["boxes_xyxy"], np.float32), wanted.xyxy)
            assert np.array_equal(np.array(row["scores"], np.float32), wanted.scores)
            assert row["names"] == [model.labels[index].name for index in wanted.class_ids]


def test_bytes_are_pictures_too_and_other_values_are_named(toy_bundle: Path) -> None:
    import pyarrow as pa

    from vtk.ray.dataset import Answers

    answers = Answers(str(toy_bundle), "image", "ort", "cpu")
    data = [PICTURES[0].read_bytes(), None, b"no picture"]
    rows = answers(pa.table({"image": pa.array(data, pa.binary())})).to_pylist()
    assert [row["error"] and row["error"].split(":")[0] for row in rows] == [
        None,
        "expected a path or bytes, got NoneType",
        "not_an_image",
    ]
    with pytest.raises(UsageError, match="no column 'image'; it has path"):
        answers(pa.table({"path": ["a"]}))
