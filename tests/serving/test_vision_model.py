"""A served bundle: pictures in, answers out, over real bundles and over the batcher's failures."""

import asyncio
import io
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vtk.bundle import read_bundle
from vtk.errors import DeadlineError, ImageError, OverloadedError, UnavailableError
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Classification
from vtk.predictor import open_predictor
from vtk.preprocess.decode import DecodeOptions, decode
from vtk.serving.arbiter import Arbiter
from vtk.serving.batcher import BatchRecord, Ticket
from vtk.serving.vision_model import STAGES, VisionModel

Serve = Callable[..., VisionModel]


def encoded(seed: int = 0, size_wh: tuple[int, int] = (24, 16), kind: str = "png", **options: Any) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size_wh[1], size_wh[0], 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, kind, **options)
    return data.getvalue()


@pytest.fixture
def serve(tmp_path: Path, make_bundle: Callable[..., Path]) -> Iterator[Serve]:
    """The mean-color bundle as a model."""
    models: list[VisionModel] = []

    def serve_it(arbiter: Arbiter | None = None, **options: Any) -> VisionModel:
        bundle = read_bundle(make_bundle(tmp_path / f"mean{len(models)}"))
        models.append(VisionModel(open_predictor(bundle), arbiter or Arbiter(), name="mean", **options))
        return models[-1]

    yield serve_it
    for model in models:
        model.close()


def test_answers_are_those_of_the_predictor_whatever_shares_the_batch(serve: Serve) -> None:
    model = serve()
    pictures = [encoded(seed, (20 + seed, 30)) for seed in range(40)]

    async def main() -> list[Any]:
        return await asyncio.gather(*map(model.answer, pictures))

    for picture, answer in zip(pictures, asyncio.run(main()), strict=True):
        (expected,) = model.predictor([decode(picture)])
        assert isinstance(answer.result, Classification)
        assert isinstance(expected, Classification)
        np.testing.assert_array_equal(answer.result.class_ids, expected.class_ids)
        np.testing.assert_allclose(answer.result.scores, expected.scores, rtol=1e-5)
        assert (answer.width, answer.height) == expected.resolution_wh
        assert tuple(sorted(answer.seconds)) == tuple(sorted(STAGES))
        assert min(answer.seconds.values()) >= 0


def test_the_size_is_that_of_the_upright_picture(serve: Serve) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    answer = asyncio.run(serve().answer(encoded(size_wh=(30, 20), kind="jpeg", exif=exif)))
    assert (answer.width, answer.height) == (20, 30)


def test_another_recipe_and_a_class_filter_reach_the_result(serve: Serve) -> None:
    model = serve()
    post = PostRecipe("classify", top_k=1)
    answer = asyncio.run(model.answer(encoded(), post=post))
    assert isinstance(answer.result, Classification)
    assert len(answer.result.scores) == 1
    filtered = asyncio.run(model.answer(encoded(), class_filter=frozenset({2})))
    assert isinstance(filtered.result, Classification)
    assert filtered.result.class_ids.tolist() == [2]


def test_a_bad_picture_costs_itself_alone_and_is_counted(serve: Serve) -> None:
    model = serve()

    async def main() -> list[Any]:
        pictures = [encoded(1), b"no picture", encoded(2)]
        return await asyncio.gather(*map(model.answer, pictures), return_exceptions=True)

    good, bad, other = asyncio.run(main())
    assert isinstance(bad, ImageError)
    assert {type(good.result), type(other.result)} == {Classification}
    assert model.stats.errors == {"ImageError": 1}
    with pytest.raises(ImageError, match="limit"):
        asyncio.run(model.answer(encoded(), decode_options=DecodeOptions(max_pixels=5)))


def test_stats_and_observers_tell_the_same(serve: Serve) -> None:
    model = serve()
    records: list[BatchRecord] = []
    model.observe(records.append)

    async def main() -> list[Any]:
        return await asyncio.gather(*(model.answer(encoded(seed)) for seed in range(17)))

    answers = asyncio.run(main())
    stats = model.stats
    assert stats.pictures == 17 == sum(record.rows for record in records)
    assert sum(stats.batches.values()) == len(records)
    assert stats.occupancy == 17 / sum(record.size for record in records)
    assert stats.num_queued == 0
    for stage in STAGES:
        assert stats.seconds[stage] == pytest.approx(sum(answer.seconds[stage] for answer in answers))


def test_a_burst_is_refused_before_it_is_decoded(serve: Serve) -> None:
    arbiter = Arbiter()
    model = serve(arbiter, max_queued=4)

    async def main() -> list[Any]:
        with arbiter.vision_turn(seconds=1.0):
            tasks = [asyncio.ensure_future(model.answer(encoded(seed))) for seed in range(10)]
            await asyncio.sleep(0)
            while sum(task.done() for task in tasks) < 6:
                await asyncio.sleep(0.001)
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())
    refused = [result for result in results if isinstance(result, OverloadedError)]
    assert len(refused) == 6
    assert "the limit is 4" in str(refused[0])
    assert refused[0].retry_after >= 1
    assert model.stats.pictures == 4
    assert asyncio.run(model.answer(encoded())).width == 24


def test_a_task_that_is_cancelled_takes_its_picture_along(serve: Serve) -> None:
    arbiter = Arbiter()
    model = serve(arbiter)

    async def main() -> None:
        with arbiter.vision_turn(seconds=1.0):
            tasks = [asyncio.ensure_future(model.answer(encoded(seed))) for seed in range(6)]
            while model.stats.num_queued < 6:
                await asyncio.sleep(0.001)
            for task in tasks[:5]:
                task.cancel()
            await asyncio.sleep(0)
        await tasks[5]

    asyncio.run(main())
    assert model.stats.pictures == 1


def test_a_deadline_holds_from_decoding_to_the_queue(serve: Serve) -> None:
    arbiter = Arbiter()
    model = serve(arbiter)
    with pytest.raises(DeadlineError):
        asyncio.run(model.answer(encoded(), ticket=Ticket(deadline=time.monotonic() - 1)))
    with arbiter.vision_turn(seconds=1.0), pytest.raises(DeadlineError):
        asyncio.run(model.answer(encoded(), ticket=Ticket(deadline=time.monotonic() + 0.05)))
    assert model.stats.errors == {"DeadlineError": 2}
    assert model.stats.pictures == 0


def test_close_answers_what_waits_and_ends_every_thread(serve: Serve) -> None:
    arbiter = Arbiter()
    before = set(threading.enumerate())
    model = serve(arbiter)
    tensor = np.zeros((3, 8, 8), np.float32)
    with arbiter.vision_turn(seconds=1.0):
        futures = [model.submit(tensor) for _ in range(9)]
    model.close()
    assert all(future.result(0)["logits"].shape == (3,) for future in futures)
    with pytest.raises(UnavailableError):
        model.submit(tensor)
    with pytest.raises(UnavailableError):
        asyncio.run(model.answer(encoded()))
    assert set(threading.enumerate()) == before


def test_tasks_of_several_event_loops_share_it(serve: Serve) -> None:
    model = serve()
    found: list[list[Any]] = []

    async def main(start: int) -> None:
        found.append(await asyncio.gather(*(model.answer(encoded(seed, (start + seed, 9))) for seed in range(5))))

    threads = [threading.Thread(target=lambda i=i: asyncio.run(main(i))) for i in (10, 20, 30)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    widths = sorted([answer.width for answer in answers] for answers in found)
    assert widths == [[start + seed for seed in range(5)] for start in (10, 20, 30)]
