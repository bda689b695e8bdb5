"""Any number of pictures over engines with fixed batch sizes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.batching import plan_batches
from vtk.bundle import Artifact, Bundle, Label, Manifest
from vtk.engines.base import Array
from vtk.engines.fake import FakeEngine
from vtk.errors import BackendError, UsageError
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Classification
from vtk.predictor import Predictor, open_predictor
from vtk.preprocess.recipe import Recipe

SIZE_HW = (4, 6)


def artifact(batch: int, *, backend: str = "onnx", target: str = "any") -> Artifact:
    builder = {"tensorrt": "10.13", "system": "linux-x86_64"} if target != "any" else {}
    return Artifact(backend, "fp32", batch, f"model.b{batch}.onnx", "0" * 64, builder, target)


def bundle_with(*artifacts: Artifact) -> Bundle:
    manifest = Manifest(
        family="tiny",
        variant="S",
        layout="official",
        task="classify",
        config={},
        source={},
        recipe=Recipe(SIZE_HW),
        post=PostRecipe("classify", top_k=2),
        labels=tuple(Label(index, f"class_{index}") for index in range(3)),
        outputs=(),
        choices=(),
        artifacts=artifacts,
        files={},
        verify={},
        vtk_version="0",
    )
    return Bundle(Path("bundle"), manifest)


def channel_means(images: npt.NDArray[np.float32]) -> dict[str, Array]:
    return {"logits": images.mean(axis=(2, 3)), "row": np.arange(len(images))}


@pytest.mark.parametrize("count", [0, 2, 4])
def test_labels_of_another_count_are_refused(count: int) -> None:
    """One label too few would give every class the name of its neighbor."""
    bundle = bundle_with(artifact(1))
    labels = tuple(Label(index, f"class_{index}") for index in range(count))
    with pytest.raises(BackendError, match=f"3 classes apart; the bundle has {count} labels"):
        Predictor(
            replace(bundle, manifest=replace(bundle.manifest, labels=labels)),
            {1: FakeEngine(channel_means, batch=1, size_hw=SIZE_HW)},
        )


def predictor_with(sizes: Sequence[int]) -> Predictor:
    engines = {size: FakeEngine(channel_means, batch=size, size_hw=SIZE_HW) for size in sizes}
    return Predictor(bundle_with(*map(artifact, sizes)), engines)


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True)


@given(count=st.integers(0, 40), sizes=sizes)
def test_a_plan_covers_the_pictures_and_pads_the_last_call_only(count: int, sizes: list[int]) -> None:
    plan = plan_batches(count, sizes)
    assert set(plan) <= set(sizes)
    assert sum(plan) >= count
    assert sum(plan[:-1]) < count or count == 0
    assert plan == sorted(plan, reverse=True)


@settings(deadline=None)
@given(count=st.integers(1, 8), sizes=sizes)
def test_no_other_division_of_the_rest_is_cheaper(count: int, sizes: list[int]) -> None:
    def cost(plan: Sequence[int]) -> float:
        return sum(plan) + len(plan) / 2

    rest = count % max(sizes)
    plans = [
        plan for calls in range(rest + 1) for plan in combinations_with_replacement(sizes, calls) if sum(plan) >= rest
    ]
    full = [max(sizes)] * (count // max(sizes))
    assert cost(plan_batches(count, sizes)) == cost(full) + min(map(cost, plans))


@pytest.mark.parametrize(
    ("count", "plan"),
    [(0, []), (1, [1]), (3, [1, 1, 1]), (6, [8]), (7, [8]), (8, [8]), (9, [8, 1]), (15, [8, 8]), (17, [8, 8, 1])],
)
def test_plans_of_batches_1_and_8(count: int, plan: list[int]) -> None:
    assert plan_batches(count, (1, 8)) == plan


@given(count=st.integers(0, 20), sizes=sizes)
def test_every_picture_gets_its_own_row(count: int, sizes: list[int]) -> None:
    tensors = [np.full((3, *SIZE_HW), value, np.float32) for value in range(1, count + 1)]
    rows = predictor_with(sizes).infer(tensors)
    assert [row["logits"].tolist() for row in rows] == [[value] * 3 for value in range(1, count + 1)]


def test_pictures_become_results() -> None:
    red = np.zeros((9, 7, 3), np.uint8)
    red[..., 0] = 255
    blue = red[..., ::-1].copy()
    first, second = predictor_with([1, 4])([red, blue])
    assert isinstance(first, Classification)
    assert isinstance(second, Classification)
    assert (int(first.class_ids[0]), int(second.class_ids[0])) == (0, 2)
    assert first.resolution_wh == (7, 9)
    assert len(first.scores) == 2


def test_another_post_recipe_replaces_the_bundles_own() -> None:
    predictor = predictor_with([1])
    prepared = predictor.prepare(np.zeros((5, 5, 3), np.uint8))
    (row,) = predictor.infer([prepared.tensor])
    result = predictor.finish(row, prepared.geometry, post=PostRecipe("classify", top_k=1))
    assert isinstance(result, Classification)
    assert len(result.scores) == 1


def test_an_engine_of_another_size_is_refused() -> None:
    engine = FakeEngine(channel_means, batch=2, size_hw=(8, 8))
    with pytest.raises(BackendError, match=r"\(2, 3, 8, 8\).*\(2, 3, 4, 6\)"):
        Predictor(bundle_with(artifact(2)), {2: engine})


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """Engines that `open_predictor` has opened; batch 5 fails to open."""
    engines: list[FakeEngine] = []

    def open_fake(path: Path, **_: object) -> FakeEngine:
        batch = int(path.stem.removeprefix("model.b"))
        if batch == 5:
            raise BackendError("out of memory")
        engines.append(FakeEngine(channel_means, batch=batch, size_hw=SIZE_HW))
        return engines[-1]

    monkeypatch.setattr("vtk.predictor.open_engine", open_fake)
    return engines


def test_all_or_the_asked_batch_sizes_are_opened(opened: list[FakeEngine]) -> None:
    bundle = bundle_with(artifact(8), artifact(1), artifact(4, backend="tensorrt"))
    assert open_predictor(bundle).batch_sizes == (1, 8)
    assert open_predictor(bundle, batches=[8, 8]).batch_sizes == (8,)
    with pytest.raises(UsageError, match=r"no graph for batch 2, 4.*holds 1, 8"):
        open_predictor(bundle, batches=[1, 2, 4])


def test_closing_closes_every_engine(opened: list[FakeEngine]) -> None:
    with open_predictor(bundle_with(artifact(1), artifact(8))):
        pass
    assert [engine.closed for engine in opened] == [True, True]


def test_what_was_opened_is_closed_when_the_next_fails(opened: list[FakeEngine]) -> None:
    with pytest.raises(BackendError, match="out of memory"):
        open_predictor(bundle_with(artifact(1), artifact(5)))
    assert [engine.closed for engine in opened] == [True]


def test_an_engine_for_another_machine_is_not_opened(opened: list[FakeEngine]) -> None:
    """Case V26: one clear line with both machines and the command, before anything is deserialized."""
    foreign = artifact(1, backend="tensorrt", target="sm_86")
    with pytest.raises(
        BackendError,
        match=r"sm_86, TensorRT 10\.13, linux-x86_64; this machine is .*, TensorRT ",
    ):
        open_predictor(bundle_with(artifact(1), foreign), backend="tensorrt")
    assert opened == []


def test_the_tail_is_padded_with_zeros_that_nobody_sees() -> None:
    seen: list[npt.NDArray[np.float32]] = []

    def record(images: npt.NDArray[np.float32]) -> dict[str, Array]:
        seen.append(images.copy())
        return channel_means(images)

    engine = FakeEngine(record, batch=4, size_hw=SIZE_HW)
    predictor = Predictor(bundle_with(artifact(4)), {4: engine})
    rows = predictor.infer([np.full((3, *SIZE_HW), 7, np.float32)] * 3)
    assert len(rows) == 3
    assert [float(image.max()) for image in seen[-1]] == [7, 7, 7, 0]


class Sharing(FakeEngine):
    """A fake that keeps the handles it has given out."""

    def share(self) -> FakeEngine:
        self.handle = FakeEngine(channel_means, batch=self.inputs[0].shape[0], size_hw=SIZE_HW)
        return self.handle


def test_the_handles_of_a_slot_are_closed_with_it_and_the_predictor_goes_on() -> None:
    engines = {size: Sharing(channel_means, batch=size, size_hw=SIZE_HW) for size in (1, 4)}
    predictor = Predictor(bundle_with(artifact(1), artifact(4)), engines)
    slot = predictor.new_slot(5)
    picture = np.full((9, 7, 3), 51, np.uint8)
    for row in range(5):
        slot.place(row, picture)
    for row in slot.infer(range(5)):
        np.testing.assert_allclose(row["logits"], 51 / 255, rtol=1e-6)
    assert [engine.handle.calls for engine in engines.values()] == [1, 1]
    assert not any(engine.handle.closed for engine in engines.values())
    del slot
    assert all(engine.handle.closed and not engine.closed for engine in engines.values())


def test_an_engine_that_is_its_own_handle_stays_open() -> None:
    predictor = predictor_with([1])
    predictor.new_slot(1)
    assert len(predictor.infer([np.zeros((3, *SIZE_HW), np.float32)])) == 1
