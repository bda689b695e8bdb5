"""The three parts together: what each is fed, what is remembered, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

from vtk.bundle import read_bundle
from vtk.engines.base import Array, Engine
from vtk.errors import BackendError, BundleError, UsageError
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.segment import segment_detections
from vtk.predictor import Predictor
from vtk.segmenting.embedded import EmbeddedPicture
from vtk.segmenting.job_prompts import job_prompts
from vtk.segmenting.predictor import SegmentPredictor, open_segment_predictor
from vtk.segmenting.prompted import PromptedModel
from vtk.segmenting.prompts import Prompt
from vtk.segmenting.tokenizer import ClipTokenizer, read_tokenizer

Picture = npt.NDArray[np.uint8]
BUS, CAT = Prompt("yellow bus"), Prompt("cat")


class Counted:
    """An engine that counts its calls."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.calls = 0
        self.backend, self.device = engine.backend, engine.device
        self.inputs, self.outputs = engine.inputs, engine.outputs

    def infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        self.calls += 1
        return self._engine.infer(feeds)

    def share(self) -> Engine:
        return self

    def close(self) -> None:
        self._engine.close()


class Parts:
    """The opened engines, counted, in a predictor that remembers nothing yet."""

    def __init__(self, opened: SegmentPredictor, tokenizer: ClipTokenizer, **options: int) -> None:
        self.images = Counted(opened.images.engines[1])
        self.text, self.decoder = Counted(opened.text_engine), Counted(opened.decoder_engine)
        images = Predictor(opened.bundle, {1: self.images})
        self.predictor = SegmentPredictor(images, self.text, self.decoder, tokenizer, **options)

    @property
    def calls(self) -> tuple[int, int, int]:
        return self.images.calls, self.text.calls, self.decoder.calls


@pytest.fixture(scope="module")
def opened(prompted_bundle: Path) -> Iterator[SegmentPredictor]:
    with open_segment_predictor(read_bundle(prompted_bundle), backend="ort", threads=1) as predictor:
        yield predictor


@pytest.fixture(scope="module")
def tokenizer(prompted_bundle: Path) -> ClipTokenizer:
    return read_tokenizer(prompted_bundle / "tokenizer", context_length=32)


@pytest.fixture
def parts(opened: SegmentPredictor, tokenizer: ClipTokenizer) -> Parts:
    return Parts(opened, tokenizer)


@pytest.fixture
def predictor(parts: Parts) -> SegmentPredictor:
    return parts.predictor


@pytest.fixture
def picture(rng: np.random.Generator) -> Picture:
    return rng.integers(0, 256, (45, 70, 3), np.uint8)


def test_each_part_is_fed_what_it_takes(predictor: SegmentPredictor, prompted: ModuleType, picture: Picture) -> None:
    embedded = predictor.embed(picture)
    tensor = predictor.images.prepare(picture).tensor
    for name, expected in prompted.features_of(tensor[None]).items():
        np.testing.assert_allclose(embedded.features[name], expected[0], atol=1e-6)
    text = predictor.embed_text("yellow bus")
    assert text.features[0, :5, 0].tolist() == [49406, 4481, 2840, 49407, 0]
    raw = predictor.decode(
        embedded, Prompt("cat", boxes_xyxy=((1, 2, 30, 40),), negative_boxes_xyxy=((5, 5, 9, 9),) * 3)
    )
    np.testing.assert_allclose(raw["logits"], prompted.BIASES + prompted.shift_of(2368, 1, 3), atol=1e-5)
    np.testing.assert_allclose(raw["boxes_xyxy"], prompted.BOXES, atol=1e-5)
    assert raw["masks"].shape == (3, 8, 8)


def test_boxes_alone_ask_for_what_is_visual(
    predictor: SegmentPredictor, prompted: ModuleType, picture: Picture
) -> None:
    raw = predictor.decode(predictor.embed(picture), Prompt(boxes_xyxy=((1, 2, 30, 40),)))
    np.testing.assert_allclose(raw["logits"], prompted.BIASES + prompted.shift_of(7195, 1, 0), atol=1e-5)


def test_another_prompt_on_a_picture_costs_the_decoder_only(parts: Parts, picture: Picture) -> None:
    predictor = parts.predictor
    predictor.segment(predictor.embed(picture), [BUS])
    assert parts.calls == (1, 1, 1)
    predictor.segment(predictor.embed(picture.copy()), [CAT])
    assert parts.calls == (1, 2, 2)  # a new text is encoded once
    predictor.segment(predictor.embed(picture), [CAT, BUS])
    assert parts.calls == (1, 2, 4)
    predictor.segment(predictor.embed(picture[:-1]), [CAT])
    assert parts.calls == (2, 2, 5)
    assert predictor.cache_stats.hits == 2


def test_features_are_forgotten_beyond_the_limit(
    opened: SegmentPredictor, tokenizer: ClipTokenizer, rng: np.random.Generator
) -> None:
    one = opened.embed(np.zeros((9, 9, 3), np.uint8)).nbytes
    parts = Parts(opened, tokenizer, cache_bytes=2 * one)
    pictures = [rng.integers(0, 256, (8, 8, 3), np.uint8) for _ in range(3)]
    for picture in (*pictures, pictures[2], pictures[1], pictures[0]):
        parts.predictor.embed(picture)
    assert parts.images.calls == 4
    assert parts.predictor.cache_stats.bytes == 2 * one


def test_nothing_of_a_larger_batch_is_kept_with_a_picture(prompted_bundle: Path, rng: np.random.Generator) -> None:
    with open_segment_predictor(read_bundle(prompted_bundle), backend="ort", threads=1, batches=[2]) as predictor:
        embedded = predictor.embed(rng.integers(0, 256, (8, 8, 3), np.uint8))
        held = {id(a): a for a in embedded.features.values()}.values()
        bases = [a.base if isinstance(a.base, np.ndarray) else a for a in held]
        assert sum(base.nbytes for base in bases) == embedded.nbytes


def test_several_prompts_are_one_result(predictor: SegmentPredictor, picture: Picture) -> None:
    embedded = predictor.embed(picture)
    together = predictor.segment(embedded, [BUS, CAT])
    assert (np.diff(together.scores) <= 0).all()
    assert sorted(set(together.class_ids.tolist())) == [0, 1]
    for index, prompt in enumerate((BUS, CAT)):
        alone, mine = predictor.segment(embedded, [prompt]), together.select(together.class_ids == index)
        np.testing.assert_array_equal(alone.xyxy, mine.xyxy)
        assert alone.masks is not None
        assert mine.masks is not None
        assert alone.masks.rle == mine.masks.rle


def test_the_result_is_what_the_recipe_makes_of_the_raw_outputs(predictor: SegmentPredictor, picture: Picture) -> None:
    embedded, post = predictor.embed(picture), PostRecipe("segment", score_threshold=0.05, max_detections=2)
    expected = segment_detections(predictor.decode(embedded, CAT), embedded.geometry, post, None)
    found = predictor.segment(embedded, [CAT], post)
    assert len(found) == 2
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_a_prompt_that_does_not_fit_is_refused(predictor: SegmentPredictor, picture: Picture) -> None:
    embedded = predictor.embed(picture)
    with pytest.raises(UsageError, match="31 tokens"):
        predictor.segment(embedded, [Prompt("bus " * 31)])
    with pytest.raises(UsageError, match="takes up to 8"):
        predictor.segment(embedded, [Prompt(boxes_xyxy=((1, 1, 2, 2),) * 9)])


def test_asking_can_be_ended_between_prompts(parts: Parts, picture: Picture) -> None:
    embedded = parts.predictor.embed(picture)
    calls: list[int] = []

    def before_each() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        parts.predictor.ask(embedded, [BUS] * 5, 0.5, before_each)
    assert parts.decoder.calls == 2


def test_a_model_with_its_prompts_set_is_one_for_jobs(predictor: SegmentPredictor, picture: Picture) -> None:
    model = PromptedModel(predictor, job_prompts(["yellow bus", "cat"]))
    assert [label.name for label in model.bundle.manifest.labels] == ["yellow bus", "cat"]
    assert predictor.bundle.manifest.labels == ()
    slot = model.new_slot(1)
    geometry = slot.place(0, picture)
    (row,) = slot.infer([0])
    found = model.finish(row, geometry)
    expected = predictor.segment(predictor.embed(picture), [BUS, CAT])
    np.testing.assert_array_equal(found.xyxy, expected.xyxy)
    np.testing.assert_array_equal(found.class_ids, expected.class_ids)
    with pytest.raises(UsageError, match="class filter"):
        model.finish(row, geometry, class_filter=frozenset({0}))


def test_a_prompt_that_is_not_asked_keeps_its_place(parts: Parts, picture: Picture) -> None:
    embedded = parts.predictor.embed(picture)
    found = parts.predictor.segment(embedded, [None, CAT])
    assert set(found.class_ids.tolist()) == {1}
    nothing = parts.predictor.segment(embedded, [None, None])
    assert nothing.xyxy.shape == (0, 4)
    assert nothing.masks is not None
    assert nothing.masks.dense().shape == (0, 45, 70)
    assert parts.decoder.calls == 1


def test_parts_of_different_models_are_refused(parts: Parts, tokenizer: ClipTokenizer) -> None:
    images = parts.predictor.images
    with pytest.raises(BackendError, match="the decoder lacks box_labels"):
        SegmentPredictor(images, parts.text, parts.text, tokenizer)
    with pytest.raises(BackendError, match=r"the text encoder takes .*fpn_0"):
        SegmentPredictor(images, parts.decoder, parts.decoder, tokenizer)


def test_a_bundle_without_tokenizer_or_part_is_refused(prompted: ModuleType, tmp_path: Path) -> None:
    bundle = prompted.write_prompted_bundle(tmp_path / "bundle")
    (bundle.root / "tokenizer/merges.txt").unlink()
    with pytest.raises(BundleError, match="tokenizer"):
        open_segment_predictor(bundle, backend="ort")
    with pytest.raises(UsageError, match="no graph for batch 3"):
        open_segment_predictor(bundle, backend="ort", batches=[3])


def test_features_of_another_picture_are_not_taken(predictor: SegmentPredictor) -> None:
    """Pictures whose bytes are equal and whose shapes differ are different pictures."""
    flat = np.arange(48, dtype=np.uint8)
    first, second = predictor.embed(flat.reshape(2, 8, 3)), predictor.embed(flat.reshape(8, 2, 3))
    assert first.geometry.source_hw != second.geometry.source_hw
    assert isinstance(first, EmbeddedPicture)
