"""A served promptable model: pictures once, prompts as often as asked, and nothing held for who has left."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vtk.bundle import read_bundle
from vtk.engines.base import Array, Engine
from vtk.errors import DeadlineError, ImageError, OverloadedError, UnavailableError, UsageError
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections
from vtk.preprocess.decode import decode
from vtk.segmenting.predictor import open_segment_predictor
from vtk.segmenting.prompts import Prompt
from vtk.serving.arbiter import Arbiter
from vtk.serving.batcher import Ticket
from vtk.serving.segment_model import SegmentModel
from vtk.serving.vision_model import STAGES
from vtk.serving.workers import Workers

BUS, CAT = Prompt("yellow bus"), Prompt("cat")
WAIT = 30.0


class Watched:
    """An engine that counts its calls and waits at a gate that is open unless a test closes it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.backend, self.device = engine.backend, engine.device
        self.inputs, self.outputs = engine.inputs, engine.outputs
        self.calls = 0
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.seen: list[Mapping[str, Array]] = []

    def infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        self.calls += 1
        self.seen.append(feeds)
        self.entered.set()
        assert self.gate.wait(WAIT)
        return self._engine.infer(feeds)

    def share(self) -> Engine:
        return self

    def close(self) -> None:
        self._engine.close()


class Served:
    """The model with its engines in sight."""

    def __init__(self, bundle: Path, **options: Any) -> None:
        watched: list[Watched] = []

        def wrap(engine: Engine) -> Engine:
            watched.append(Watched(engine))
            return watched[-1]

        parts = open_segment_predictor(read_bundle(bundle), backend="ort", threads=1, wrap=wrap)
        self.text, self.decoder = watched
        self.images = {batch: Watched(engine) for batch, engine in parts.images.engines.items()}
        parts.images.engines = dict(self.images)
        self.model = SegmentModel(parts, Arbiter(), name="sam", **options)
        self.warm = self._image_calls

    @property
    def _image_calls(self) -> int:
        return sum(engine.calls for engine in self.images.values())

    @property
    def calls(self) -> tuple[int, int, int]:
        return self._image_calls - self.warm, self.text.calls, self.decoder.calls

    def open_gates(self) -> None:
        for engine in (*self.images.values(), self.text, self.decoder):
            engine.gate.set()


@pytest.fixture
def serve(prompted_bundle: Path) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def start(**options: Any) -> Served:
        made.append(Served(prompted_bundle, **options))
        return made[-1]

    yield start
    for served in made:
        served.open_gates()
        served.model.close()


def encoded(seed: int = 0, size_wh: tuple[int, int] = (40, 24)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size_wh[1], size_wh[0], 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "png")
    return data.getvalue()


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), WAIT)


def test_answers_are_those_of_the_parts(serve: Callable[..., Served]) -> None:
    model = serve().model
    pictures = [encoded(seed, (20 + seed, 30)) for seed in range(12)]

    async def main() -> list[Any]:
        return await asyncio.gather(*(model.segment(picture, [BUS, CAT]) for picture in pictures))

    for picture, answer in zip(pictures, asyncio.run(main()), strict=True):
        expected = model.parts.segment(model.parts.embed(decode(picture)), [BUS, CAT])
        assert isinstance(answer.result, Detections)
        np.testing.assert_allclose(answer.result.scores, expected.scores, rtol=1e-5)
        np.testing.assert_allclose(answer.result.xyxy, expected.xyxy, rtol=1e-5)
        assert (answer.width, answer.height) == expected.resolution_wh
        assert answer.seconds.keys() == set(STAGES)
        assert all(value >= 0 for value in answer.seconds.values())


def test_another_prompt_on_a_picture_costs_the_decoder_only(serve: Callable[..., Served]) -> None:
    served, picture = serve(), encoded()
    answer = asyncio.run(served.model.segment(picture, [BUS]))
    assert served.calls == (1, 1, 1)
    assert answer.seconds["decode"] > 0
    again = asyncio.run(served.model.segment(bytes(picture), [BUS, CAT]))
    assert served.calls == (1, 2, 3)
    assert again.seconds["decode"] == again.seconds["preprocess"] == 0
    asyncio.run(served.model.segment(encoded(1), [CAT]))
    assert served.calls == (2, 2, 4)
    stats = served.model.stats
    assert stats.cache is not None
    assert (stats.cache.hits, stats.cache.misses, stats.pictures) == (1, 2, 2)


def test_boxes_and_thresholds_are_followed(serve: Callable[..., Served]) -> None:
    model, picture = serve().model, encoded()
    every = asyncio.run(model.segment(picture, [CAT], post=PostRecipe("segment", score_threshold=0)))
    assert len(every.result.scores) == 3  # type: ignore[union-attr]
    boxed = Prompt("cat", boxes_xyxy=((1, 2, 20, 20),), negative_boxes_xyxy=((0, 0, 3, 3), (5, 5, 9, 9)))
    fewer = asyncio.run(model.segment(picture, [boxed], post=PostRecipe("segment", score_threshold=0)))
    assert fewer.result.scores[0] < every.result.scores[0]  # type: ignore[union-attr]


def test_pictures_and_prompts_that_cannot_be_used_are_refused(serve: Callable[..., Served]) -> None:
    served = serve()
    model = served.model
    with pytest.raises(ImageError, match="is no picture"):
        asyncio.run(model.segment(b"GIF?", [BUS]))
    with pytest.raises(UsageError, match="31 tokens"):
        asyncio.run(model.segment(encoded(), [Prompt("bus " * 31)]))
    with pytest.raises(UsageError, match="outside of the picture"):
        asyncio.run(model.segment(encoded(), [Prompt(boxes_xyxy=((100, 100, 200, 200),))]))
    with pytest.raises(UsageError, match="prompts to /v1/vision/segment"):
        asyncio.run(model.answer(encoded()))
    with pytest.raises(UsageError, match="prompts"):
        model.submit(np.zeros((3, 32, 32), np.float32))
    assert model.stats.errors == {"ImageError": 1, "UsageError": 2}


def test_a_client_that_leaves_ends_the_work_before_the_next_prompt(serve: Callable[..., Served]) -> None:
    served = serve()

    async def main() -> None:
        served.decoder.gate.clear()
        task = asyncio.create_task(served.model.segment(encoded(), [BUS, CAT, BUS]))
        await until(served.decoder.entered.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        served.decoder.gate.set()
        await until(lambda: served.model.stats.num_queued == 0)
        await served.model.segment(encoded(2), [CAT])

    asyncio.run(main())
    assert served.decoder.calls == 2  # one of the first, and that of the second


def test_a_deadline_holds_between_prompts(serve: Callable[..., Served]) -> None:
    served = serve()
    with pytest.raises(DeadlineError):
        asyncio.run(served.model.segment(encoded(), [BUS], ticket=Ticket(deadline=0.0)))
    assert served.calls == (0, 0, 0)


def test_only_so_many_pictures_may_wait(serve: Callable[..., Served]) -> None:
    served = serve(max_queued=4)

    async def main() -> list[Any]:
        served.decoder.gate.clear()
        tasks = [asyncio.create_task(served.model.segment(encoded(seed), [CAT])) for seed in range(7)]
        await until(served.decoder.entered.is_set)
        served.decoder.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    refused = [item for item in asyncio.run(main()) if isinstance(item, OverloadedError)]
    assert len(refused) == 3


def test_the_most_urgent_picture_goes_first(serve: Callable[..., Served]) -> None:
    served = serve()
    served.model._askers.close()
    served.model._askers = Workers(1, "one-prompt", niceness=0)  # so that one comes after the other

    async def main() -> None:
        served.decoder.gate.clear()
        tasks = [asyncio.create_task(served.model.segment(encoded(), [CAT]))]
        await until(served.decoder.entered.is_set)
        for number, prompt, priority in ((1, CAT, 5), (2, BUS, 1)):
            waiting = served.model.segment(encoded(number), [prompt], ticket=Ticket(priority))
            tasks.append(asyncio.create_task(waiting))
        await until(lambda: served.model.stats.num_queued == 3)
        served.decoder.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    cat, bus = (served.model.parts.embed_text(str(prompt.text)).features.tobytes() for prompt in (CAT, BUS))
    assert [feeds["text_features"].tobytes() for feeds in served.decoder.seen] == [cat, bus, cat]


def test_a_closed_model_takes_nothing(prompted_bundle: Path) -> None:
    served = Served(prompted_bundle)
    served.model.close()
    with pytest.raises(UnavailableError):
        asyncio.run(served.model.segment(encoded(), [BUS]))
