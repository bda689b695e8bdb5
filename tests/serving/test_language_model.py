"""A served language model over the fake device; tests/llm_serving/models has its embeddings beside transformers'."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_engine import PROMPT, greedy, loaded

from vtk.errors import BackendError, OverloadedError, RequestError
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.engine import Generation
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.serving.arbiter import Arbiter
from vtk.serving.language_model import LanguageModel

TEXT = "".join(map(chr, PROMPT))
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
Serve = Callable[..., LanguageModel]


def wait_until(model: LanguageModel, condition: Callable[[], bool]) -> Any:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    return asyncio.wait_for(wait(), 20)


def holding(steps: list[None], release: threading.Event) -> Callable[[], None]:
    """Counts steps; with 16 tokens in each the prompt takes two, and the third is held until `release`."""

    def hold() -> None:
        steps.append(None)
        assert len(steps) < 3 or release.wait(20)

    return hold


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A model over the fake device; at the end nothing of any request is left."""
    models: list[LanguageModel] = []

    def serve_it(arbiter: Arbiter | None = None, *, max_queued: int = 256, **settings: Any) -> LanguageModel:
        fake = loaded(**settings)
        fake.info = SimpleNamespace()
        args = EngineArgs(max_num_seqs=settings.get("max_num_seqs", 8))
        models.append(LanguageModel(fake, args, arbiter or Arbiter(), name="fake", max_queued=max_queued))
        return models[-1]

    yield serve_it
    for model in models:
        model.close()
        pool = model.loaded.engine.scheduler.pool
        assert pool.num_free == pool.num_blocks
        assert (model.num_open, model.loop.num_live) == (0, 0)


async def ask(
    model: LanguageModel, prompt: Any, name: str = "a", params: SamplingParams = GREEDY, **options: Any
) -> str:
    generation = await model.prepare(prompt, params, request_id=name, **options)
    return "".join([delta.text async for delta in model.stream(generation)])


def test_tasks_get_their_texts(serve: Serve) -> None:
    model = serve()

    async def main() -> list[str]:
        return await asyncio.gather(*(ask(model, TEXT[: 3 + i], f"r{i}") for i in range(12)))

    assert asyncio.run(main()) == [greedy(PROMPT[: 3 + i], 12) for i in range(12)]


def test_a_generation_holds_what_was_asked_for(serve: Serve) -> None:
    model = serve()
    generation = asyncio.run(model.prepare(TEXT, GREEDY, request_id="a", priority=3, cache_salt="s", queue_timeout=2.0))
    assert generation == Generation("a", PROMPT, GREEDY, 3, "s", 2.0)


def test_tools_reach_the_chat_template(serve: Serve) -> None:
    model = serve()
    messages = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "weather"}}]
    generation = asyncio.run(model.prepare(messages, GREEDY, request_id="a", tools=tools))
    assert bytes(generation.prompt) == b"weather\nhi\n"


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("x" * 200, GREEDY, "The prompt has 200 tokens"),
        ([1, 128], GREEDY, "Token ids of this model are 0 to 127"),
        ([], GREEDY, "A prompt is a text"),
        (TEXT, SamplingParams(max_tokens=500), "exceed the context of 200"),
    ],
)
def test_what_can_never_be_served_is_refused_before_its_stream(
    serve: Serve, prompt: Any, params: SamplingParams, message: str
) -> None:
    """Cases L14 and L15."""
    steps: list[None] = []
    model = serve(before_step=lambda: steps.append(None))
    with pytest.raises(RequestError, match=message):
        asyncio.run(model.prepare(prompt, params, request_id="a"))
    assert not steps
    assert model.num_open == 0


def test_a_full_queue_refuses_and_goes_on(serve: Serve) -> None:
    gate = threading.Event()
    model = serve(max_num_seqs=2, max_queued=3, before_step=lambda: gate.wait(20))

    async def main() -> list[Any]:
        tasks = [asyncio.ensure_future(ask(model, TEXT, f"r{i}")) for i in range(5)]
        await wait_until(model, lambda: model.loop.num_live + len(model.loop._commands) == 5)
        with pytest.raises(OverloadedError, match="5 requests are open already; the limit is 5"):
            await ask(model, TEXT, "late")
        gate.set()
        texts = await asyncio.gather(*tasks)
        return [*texts, await ask(model, TEXT, "later")]

    assert asyncio.run(main()) == [greedy(PROMPT, 12)] * 6


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_a_client_that_leaves_frees_its_request(serve: Serve, how: str) -> None:
    """Case L35: held in its third step, it is left there, and there is no fifth."""
    steps: list[None] = []
    leaving = threading.Event()
    model = serve(before_step=holding(steps, leaving), max_num_batched_tokens=16)
    long = SamplingParams(temperature=0.0, max_tokens=150)

    async def main() -> None:
        if how == "close":
            generation = await model.prepare(TEXT, long, request_id="a")
            async with aclosing(model.stream(generation)) as deltas:
                await anext(deltas)
                await wait_until(model, lambda: len(steps) == 3)
        else:
            task = asyncio.ensure_future(ask(model, TEXT, "a", long))
            await wait_until(model, lambda: len(steps) == 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        leaving.set()
        await wait_until(model, lambda: model.loop.num_live == 0 == model.num_open)

    asyncio.run(main())
    assert len(steps) <= 4


def test_steps_take_turns_with_pictures(serve: Serve) -> None:
    """No step runs while a batch has the device, and none is lost."""
    arbiter = Arbiter()
    inside: list[str] = []

    def step() -> None:
        assert not inside
        assert arbiter._rules.holder is not None

    model = serve(arbiter, before_step=step)
    stop = threading.Event()

    def show() -> None:
        while not stop.is_set():
            with arbiter.vision_turn(seconds=0.001):
                inside.append("pictures")
                stop.wait(0.0005)
                inside.clear()

    thread = threading.Thread(target=show)
    thread.start()
    try:
        params = SamplingParams(temperature=0.0, max_tokens=60)
        assert asyncio.run(ask(model, TEXT, params=params)) == greedy(PROMPT, 60)
    finally:
        stop.set()
        thread.join()
    assert arbiter.snapshot().language_turns >= 60
    assert not arbiter._rules._active  # the engine said that it rests


def test_the_room_for_pictures_follows_the_streams(serve: Serve) -> None:
    gate, reached = threading.Event(), threading.Event()
    count = iter(range(10**6))

    def step() -> None:
        if next(count) == 20:  # past the prompt
            reached.set()
            assert gate.wait(20)

    arbiter = Arbiter()
    model = serve(arbiter, before_step=step)

    async def main() -> None:
        task = asyncio.ensure_future(ask(model, TEXT, params=SamplingParams(temperature=0.0, max_tokens=100)))
        await asyncio.to_thread(reached.wait, 20)
        assert arbiter.vision_room() < 0.2
        gate.set()
        await task
        await wait_until(model, lambda: arbiter.vision_room() == float("inf"))

    assert arbiter.vision_room() == float("inf")
    asyncio.run(main())


def mean_of(ids: list[int]) -> np.ndarray[Any, Any]:
    """What the fake device's hidden states, the token and its position, come to."""
    mean = np.array([np.mean(ids), (len(ids) - 1) / 2])
    return mean / np.linalg.norm(mean)


def test_embeddings_are_means_whatever_shares_their_steps(serve: Serve) -> None:
    """In chunks, with a warm cache, preempted, beside streams that do not notice."""
    gate, reached = threading.Event(), threading.Event()
    preempted: set[str] = set()

    def step() -> None:
        reached.set()
        assert gate.wait(20)
        waiting = model.loaded.engine.scheduler._waiting.values()
        preempted.update(request.request_id for request in waiting if request.num_preemptions)

    model = serve(num_blocks=20, max_num_batched_tokens=9, before_step=step)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(1, 128, length).tolist() for length in (1, 2, 9, 40, 60, 60, 70)]
    inputs.append(inputs[4])

    async def main() -> tuple[list[Any], list[str]]:
        """The first step waits for all the others, who come in this order: they always share the same steps."""
        texts = [asyncio.ensure_future(ask(model, TEXT[:5], "r0"))]
        assert await asyncio.to_thread(reached.wait, 20)
        embeddings: list[asyncio.Future[Any]] = []
        for i, ids in enumerate(inputs):
            embeddings.append(asyncio.ensure_future(model.embed(ids)))
            await wait_until(model, lambda: len(model.loop._commands) == len(texts) + len(embeddings) - 1)
            texts.append(asyncio.ensure_future(ask(model, TEXT[: 6 + i], f"r{i + 1}")))
            await wait_until(model, lambda: len(model.loop._commands) == len(texts) + len(embeddings) - 1)
        gate.set()
        return await asyncio.gather(*embeddings), await asyncio.gather(*texts)

    found, texts = asyncio.run(main())
    for ids, embedding in zip(inputs, found, strict=True):
        assert embedding.dtype == np.float32
        np.testing.assert_allclose(embedding, mean_of(ids), rtol=1e-5)
    assert texts == [greedy(PROMPT[: 5 + i], 12) for i in range(9)]
    assert any(name.startswith("embed") for name in preempted)


def test_what_cannot_be_embedded_is_refused(serve: Serve) -> None:
    model = serve()
    for ids, message in (([], "A prompt is"), ([128], "Token ids"), ([1] * 200, "exceed the context of 200")):
        with pytest.raises(RequestError, match=message):
            asyncio.run(model.embed(ids))
    model.loop.close()
    with pytest.raises(BackendError, match="closed"):
        asyncio.run(model.embed([1, 2]))


def test_an_embedding_that_is_no_numbers_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model of damaged weights computes would lie in somebody's index unseen."""
    model = serve()
    forward = model.loaded.runner.forward

    def damaged(inputs: Any, hidden: Any = None) -> Any:
        logits = forward(inputs, hidden) * np.float32("nan")
        if hidden is not None:
            hidden[1:] = np.nan
        return logits

    monkeypatch.setattr(model.loaded.runner, "forward", damaged)
    with pytest.raises(BackendError, match="not numbers: its weights are damaged"):
        asyncio.run(model.embed([1, 2, 3]))


def test_an_engine_that_is_closed_in_the_middle_keeps_nobody_waiting(serve: Serve) -> None:
    arbiter = Arbiter()
    steps: list[None] = []
    closing = threading.Event()

    model = serve(arbiter, before_step=holding(steps, closing), max_num_batched_tokens=16)

    async def main() -> None:
        generation = await model.prepare(TEXT, SamplingParams(temperature=0.0, max_tokens=150), request_id="a")
        async with aclosing(model.stream(generation)) as deltas:
            await anext(deltas)
            closed = asyncio.ensure_future(asyncio.to_thread(model.close))
            await wait_until(model, lambda: model.loop._closing)
            closing.set()
            await closed
            with pytest.raises(BackendError, match="closed before the request had ended"):
                async for _ in deltas:
                    pass

    asyncio.run(main())
    assert arbiter.vision_room() == float("inf")
    with arbiter.vision_turn(seconds=100.0):
        pass
