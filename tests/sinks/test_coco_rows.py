"""Rows that somebody has changed."""

from pathlib import Path

import pytest

from vtk.errors import UsageError
from vtk.sinks.base import OutputFolder
from vtk.sinks.coco import CocoSink


def test_a_row_of_an_unknown_picture_is_told(tmp_path: Path) -> None:
    row = {"index": 0, "file_name": "b.png", "width": 4, "height": 3, "detections": []}
    sink = CocoSink(OutputFolder(tmp_path), (), {"a.png": 7})
    with pytest.raises(UsageError, match=r"row of 'b\.png'"):
        sink.finish(1, lambda: iter([row]))
    sink.finish(1, lambda: iter([row | {"file_name": "a.png"}]))
    assert b'"id": 7' in (tmp_path / "coco.json").read_bytes()
