"""Large pictures in tiles: every pixel is seen, small pictures as without, objects on borders once."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vtk.bundle import read_bundle
from vtk.cli.main import main
from vtk.errors import BackendError, UsageError
from vtk.inputs import expand
from vtk.postprocess.results import Detections
from vtk.predictor import open_predictor
from vtk.preprocess.geometry import Geometry
from vtk.run import run_job
from vtk.tiled_predictor import TiledPredictor
from vtk.tiling import Tiling

SIZES = st.integers(1, 3000)
TILINGS = st.builds(Tiling, st.integers(32, 700), st.floats(0, 0.9))


@settings(deadline=None)
@given(width=SIZES, height=SIZES, tiling=TILINGS)
def test_tiles_cover_the_picture(width: int, height: int, tiling: Tiling) -> None:
    """All of one size, inside the picture, and neighbors share at least what was asked for."""
    boxes = tiling.boxes(width, height)
    wide, high = min(tiling.size, width), min(tiling.size, height)
    assert all((x1 - x0, y1 - y0) == (wide, high) for x0, y0, x1, y1 in boxes)
    for axis, length in ((0, width), (1, height)):
        spans = sorted({(box[axis], box[axis + 2]) for box in boxes})
        assert (spans[0][0], spans[-1][1]) == (0, length)
        for (_, end), (start, _) in pairwise(spans):
            assert end - start >= min(tiling.overlap * tiling.size, tiling.size - 1)
    columns, rows = ({box[axis] for box in boxes} for axis in (0, 1))
    assert len(boxes) == len(set(boxes)) == len(columns) * len(rows), "a whole grid, none twice"


@settings(deadline=None)
@given(length=st.integers(1, 5000), tiling=TILINGS)
def test_no_tile_more_than_needed(length: int, tiling: Tiling) -> None:
    """One column less could not cover the picture with the overlap that was asked for."""
    count = len(tiling.boxes(length, 1))
    step = tiling.size - min(tiling.size - 1, int(np.ceil(tiling.overlap * tiling.size)))
    assert count == 1 or tiling.size + (count - 2) * step < length


@pytest.mark.parametrize("values", [(0, 0.2), (31, 0.2), (640, -0.1), (640, 0.95)])
def test_values_without_sense_are_refused(values: tuple[int, float]) -> None:
    with pytest.raises(UsageError):
        Tiling(*values)


class Spots:
    """A model that finds every pure red block, whatever its size, of a picture up to 64 x 64, and counts its batches.

    It sees of an object what the tile shows, as a real detector does.
    """

    batch_sizes = (1, 4)
    backend = "spots"
    device = "cpu"
    lanes = 1

    def __init__(self, stub: ModuleType) -> None:
        self.bundle = stub.StubModel().bundle
        self.batches: list[int] = []
        self.largest = 0

    def new_slot(self, rows: int) -> Any:
        assert rows == 4
        return SpotsSlot(self)

    def finish(self, row: Mapping[str, Any], geometry: Geometry, **options: Any) -> Detections:
        height, width = geometry.source_hw
        boxes = np.asarray(row["boxes"], np.float32).reshape(-1, 4)
        scores = np.linspace(0.9, 0.5, len(boxes), dtype=np.float32)
        return Detections(boxes, scores, np.ones(len(boxes), np.int64), (width, height))


class SpotsSlot:
    def __init__(self, model: Spots) -> None:
        self.model = model
        self.pictures: dict[int, npt.NDArray[np.uint8]] = {}

    def place(self, row: int, picture: npt.NDArray[np.uint8]) -> Geometry:
        assert picture.flags.c_contiguous
        self.model.largest = max(self.model.largest, picture.size)
        self.pictures[row] = picture
        size_hw = (picture.shape[0], picture.shape[1])
        return Geometry(size_hw, size_hw, size_hw, (1.0, 1.0), (0, 0))

    def infer(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        self.model.batches.append(len(rows))
        return [{"boxes": red_blocks(self.pictures[row])} for row in rows]


def red_blocks(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    from scipy import ndimage

    red = (picture[..., 0] == 255) & (picture[..., 1] == 0)
    if not red.any():
        return np.empty((0, 4))
    found = ndimage.find_objects(ndimage.label(red)[0])
    return np.array([(x.start, y.start, x.stop, y.stop) for y, x in found], np.float64)


def draw(size_wh: tuple[int, int], blocks: Sequence[tuple[int, int, int, int]]) -> npt.NDArray[np.uint8]:
    picture = np.full((size_wh[1], size_wh[0], 3), 90, np.uint8)
    for x0, y0, x1, y1 in blocks:
        picture[y0:y1, x0:x1] = (255, 0, 0)
    return picture


@st.composite
def scattered(draw_value: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Blocks of 6 to 150 pixels in a picture of 400 x 300, one per cell of a grid, with a gap between them."""
    blocks = []
    for column in range(4):
        for row in range(3):
            if draw_value(st.booleans()):
                x0 = column * 100 + draw_value(st.integers(0, 40))
                y0 = row * 100 + draw_value(st.integers(0, 40))
                blocks.append((x0, y0, x0 + draw_value(st.integers(6, 55)), y0 + draw_value(st.integers(6, 55))))
    return blocks


@settings(deadline=None, max_examples=60)
@given(blocks=scattered(), size=st.integers(48, 160), overlap=st.floats(0.1, 0.6))
def test_each_object_is_found_once(
    stub: ModuleType, blocks: list[tuple[int, int, int, int]], size: int, overlap: float
) -> None:
    """Whether a tile sees it whole, two tiles see it whole, or (larger than a tile) none does."""
    model = Spots(stub)
    (found,) = TiledPredictor(model, Tiling(size, overlap))([draw((400, 300), blocks)])
    assert sorted(map(tuple, found.xyxy.tolist())) == sorted(blocks)
    assert found.resolution_wh == (400, 300)
    assert (np.diff(found.scores) <= 0).all()


def test_an_object_larger_than_every_tile_is_one_box(stub: ModuleType) -> None:
    block = (37, 21, 311, 278)
    (found,) = TiledPredictor(Spots(stub), Tiling(64, 0.25))([draw((400, 300), [block])])
    assert found.xyxy.tolist() == [list(block)]


def test_a_picture_that_fits_is_seen_as_without_tiles(toy_bundle: Path) -> None:
    """Bit for bit, at several sizes, down to one pixel less than a tile."""
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (*size, 3), np.uint8) for size in ((96, 96), (95, 64), (20, 96))]
    with open_predictor(read_bundle(toy_bundle)) as predictor:
        post = replace(predictor.bundle.manifest.post, score_threshold=0.01)
        tiled = TiledPredictor(predictor, Tiling(96, 0.2), post=post)
        for picture, found in zip(pictures, tiled(pictures), strict=True):
            prepared = predictor.prepare(picture)
            wanted = predictor.finish(predictor.infer([prepared.tensor])[0], prepared.geometry, post=post)
            assert isinstance(wanted, Detections)
            assert len(wanted)
            np.testing.assert_array_equal(found.xyxy, wanted.xyxy)
            np.testing.assert_array_equal(found.scores, wanted.scores)
            np.testing.assert_array_equal(found.class_ids, wanted.class_ids)


def test_tiles_go_through_the_engine_in_batches(stub: ModuleType) -> None:
    model = Spots(stub)
    TiledPredictor(model, Tiling(50, 0.0))([np.zeros((100, 150, 3), np.uint8)])
    assert model.batches == [4, 2]


def test_memory_holds_tiles_of_one_batch_only(stub: ModuleType) -> None:
    """A picture of 100 megapixels in 361 tiles: no copy is larger than a tile."""
    import tracemalloc

    picture = np.zeros((10_000, 10_000, 3), np.uint8)
    model = Spots(stub)
    tracemalloc.start()
    (found,) = TiledPredictor(model, Tiling(640, 0.2))([picture])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 0
    assert sum(model.batches) == 400
    assert model.largest == 640 * 640 * 3
    assert peak < 40 * model.largest


def save(path: Path, picture: npt.NDArray[np.uint8]) -> None:
    Image.fromarray(picture).save(path)


BLOCKS = [(10, 12, 40, 50), (90, 80, 130, 120), (200, 10, 212, 19), (300, 200, 399, 299)]


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


@pytest.fixture
def spots(stub: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Spots:
    model = Spots(stub)
    monkeypatch.setattr("vtk.bundle.read_bundle", lambda path: model.bundle)
    monkeypatch.setattr("vtk.predictor.open_predictor", lambda bundle, **options: nullcontext(model))
    return model


def test_the_command_line_asks_for_tiles(spots: Spots, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    for number in range(5):
        save(tmp_path / f"in/{number}.png", draw((400, 300), BLOCKS[: number + 1]))
    (tmp_path / "in/bad.png").write_bytes(b"no picture")
    command = ["run", "b", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--tile", "100"]
    assert main([*command, "--overlap", "0.3"]) == 1
    found = rows_of(tmp_path / "out")
    for number, row in enumerate(found):
        boxes = sorted(item["bbox_xyxy"] for item in row["detections"])
        assert boxes == sorted([list(map(float, block)) for block in BLOCKS[: number + 1]])
        assert (row["width"], row["height"]) == (400, 300)
    assert main(command) == 2
    assert "tiling.overlap: 0.3 → 0.2" in capsys.readouterr().err
    limited = [*command[:-3], str(tmp_path / "two"), "--tile", "100", "--max-detections", "2", "--keep-going"]
    assert main(limited) == 0
    assert [len(row["detections"]) for row in rows_of(tmp_path / "two")] == [1, 2, 2, 2, 2]


@pytest.mark.parametrize(("flags", "message"), [(["--overlap", "0.2"], "--tile"), (["--tile", "8"], "at least 32")])
def test_options_without_sense_are_told(
    spots: Spots, tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "a.png", draw((40, 30), []))
    assert main(["run", "b", str(tmp_path / "a.png"), "-o", str(tmp_path / "out"), *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_other_tasks_have_no_tiles(
    stub: ModuleType,
    task: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = stub.StubModel(task)
    with pytest.raises(UsageError, match="detect"):
        TiledPredictor(model, Tiling(64, 0.2))
    monkeypatch.setattr("vtk.bundle.read_bundle", lambda path: model.bundle)
    assert main(["run", "b", "x", "-o", str(tmp_path / "out"), "--tile", "64"]) == 2
    assert "--tile is for bundles of task 'detect'" in capsys.readouterr().err


def test_an_engine_that_fails_costs_the_picture(spots: Spots, stub: ModuleType, tmp_path: Path) -> None:
    """Case V58: the slot is free again for the next picture."""
    (tmp_path / "in").mkdir()
    for number in range(6):
        save(tmp_path / f"in/{number}.png", draw((200, 200), [(10, 10, 20 + number, 20)]))

    infer = SpotsSlot.infer

    def fail(self: SpotsSlot, rows: Sequence[int]) -> list[dict[str, Any]]:
        found = infer(self, rows)
        if any((row["boxes"] == (10, 10, 22, 20)).all(axis=1).any() for row in found if len(row["boxes"])):
            raise BackendError("out of memory")
        return found

    options = replace(stub.stub_options(), tiling=Tiling(100, 0.2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpotsSlot, "infer", fail)
        summary = run_job(spots, expand([str(tmp_path / "in")]), tmp_path / "out", options, lambda done, failed: None)
    assert (summary.num_results, dict(summary.failures)) == (5, {"engine": 1})


def test_filters_are_those_of_the_tiles(stub: ModuleType) -> None:
    tiled = TiledPredictor(Spots(stub), Tiling(64, 0.2))
    geometry = tiled.new_slot(1).place(0, draw((80, 80), []))
    assert len(tiled.finish({}, geometry)) == 0
    with pytest.raises(ValueError, match="made with"):
        tiled.finish({}, geometry, class_filter=frozenset({1}))


def test_a_real_detector_finds_the_same_in_a_mosaic(toy_bundle: Path) -> None:
    """Four pictures side by side, in tiles of one picture each without overlap, are the four pictures."""
    rng = np.random.default_rng(3)
    parts = [rng.integers(0, 256, (96, 96, 3), np.uint8) for _ in range(4)]
    mosaic = np.concatenate([np.concatenate(parts[:2], 1), np.concatenate(parts[2:], 1)])
    with open_predictor(read_bundle(toy_bundle)) as predictor:
        post = replace(predictor.bundle.manifest.post, score_threshold=0.01)
        (found,) = TiledPredictor(predictor, Tiling(96, 0.0), post=post)([mosaic])
        wanted = []
        for part, offset in zip(parts, [(0, 0), (96, 0), (0, 96), (96, 96)], strict=True):
            prepared = predictor.prepare(part)
            result = predictor.finish(predictor.infer([prepared.tensor])[0], prepared.geometry, post=post)
            assert isinstance(result, Detections)
            wanted += [(*box, score) for box, score in zip(result.xyxy + (offset * 2), result.scores, strict=True)]
    mine = [(*box, score) for box, score in zip(found.xyxy, found.scores, strict=True)]
    np.testing.assert_allclose(sorted(mine), sorted(wanted), atol=1e-3)


def test_a_promptable_model_in_tiles(prompted_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Masks are merged as their boxes are; examples by picture do not reach tiles."""
    (tmp_path / "in").mkdir()
    save(tmp_path / "in/0.png", np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8))
    command = ["run", str(prompted_bundle), str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--score", "0.01"]
    assert main([*command, "--prompt", "cat", "--tile", "128"]) == 0
    (row,) = rows_of(tmp_path / "out")
    assert row["detections"]
    assert {tuple(item["segmentation"]["size"]) for item in row["detections"]} == {(200, 300)}
    (tmp_path / "boxes.json").write_text(json.dumps({"0.png": [{"prompt": "cat", "xyxy": [0, 0, 50, 50]}]}))
    boxes = ["--prompt", "cat", "--boxes", str(tmp_path / "boxes.json"), "--overwrite"]
    assert main([*command, *boxes, "--tile", "128"]) == 2
    assert "Leave out --boxes or --tile" in capsys.readouterr().err
