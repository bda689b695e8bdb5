"""The thread that owns the engine, seen from other threads and from asyncio."""

import asyncio
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import PROMPT, greedy, make, request

from vtk.errors import BackendError, RequestError
from vtk.llm_serving.async_engine import AsyncEngine
from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.engine import Delta, Generation, LLMEngine
from vtk.llm_serving.engine_loop import EngineLoop, Event


class Steps:
    """Stops the fake device in a step until it is let go, or lets it fail: no test depends on who is faster."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.hold_at: int | None = None
        self.fails: Callable[[], bool] = lambda: False
        self.count = 0
        self.watch: Callable[[], bool] = lambda: False
        self.watched: list[bool] = []

    def __call__(self) -> None:
        self.count += 1
        self.watched.append(self.watch())
        if self.count == self.hold_at:
            self.gate.clear()
        self.reached.set()
        assert self.gate.wait(20)
        if self.fails():
            raise ArithmeticError("the device\nis on fire")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never happens"
        time.sleep(0.001)


def check_empty(engine: LLMEngine, loop: EngineLoop) -> None:
    wait_until(lambda: not engine.has_work)
    assert (engine.num_live, loop.num_live) == (0, 0)
    assert not engine._by_id
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_blocks
    engine.scheduler.check_integrity()


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def engine(steps: Steps) -> LLMEngine:
    return make(num_blocks=48, before_step=steps, max_num_batched_tokens=9)


@pytest.fixture
def loop(engine: LLMEngine, steps: Steps) -> Any:
    loop = EngineLoop(engine)
    yield loop
    steps.gate.set()
    loop.close()
    assert not loop._thread.is_alive()
    check_empty(engine, loop)


async def collect(engine: AsyncEngine, generation: Generation) -> str:
    return "".join([delta.text async for delta in engine.stream(generation)])


def test_threads_stream_side_by_side(loop: EngineLoop) -> None:
    texts: dict[str, str] = {}

    def stream(name: str, length: int) -> None:
        texts[name] = "".join(delta.text for delta in loop.stream(request(name, PROMPT[:length], max_tokens=20)))

    threads = [threading.Thread(target=stream, args=(f"r{i}", i + 1)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {f"r{i}": greedy(PROMPT[: i + 1], 20) for i in range(12)}


def test_tasks_stream_side_by_side(loop: EngineLoop) -> None:
    async def main() -> list[str]:
        engine = AsyncEngine(loop)
        return await asyncio.gather(*(collect(engine, request(f"r{i}", PROMPT[: i + 1])) for i in range(12)))

    assert asyncio.run(main()) == [greedy(PROMPT[: i + 1], 12) for i in range(12)]


def test_a_request_that_never_fits_is_refused_before_its_stream_starts(loop: EngineLoop, steps: Steps) -> None:
    """Case L15: the error is raised by the call, not by the first item."""
    for refuse in (loop.stream, AsyncEngine(loop).stream, lambda generation: loop.submit(generation, print)):
        with pytest.raises(RequestError, match="exceed the context of 200"):
            refuse(request(max_tokens=500))
    assert steps.count == 0


@pytest.mark.parametrize("how", ["close", "cancel"])
@pytest.mark.parametrize("when", range(1, 15, 2))
def test_a_client_that_leaves_frees_its_blocks_within_a_step(
    engine: LLMEngine, loop: EngineLoop, steps: Steps, how: str, when: int
) -> None:
    """Case L35: queued, in a chunk of the prompt, or decoding; the neighbor does not notice."""

    async def leave(client: AsyncEngine) -> None:
        stream = client.stream(request("go", n=2, max_tokens=150))
        if how == "close":
            async for _ in stream:
                break
            await stream.aclose()
            return
        task = asyncio.ensure_future(collect(client, request("go", n=2, max_tokens=150)))
        await asyncio.to_thread(wait_until, lambda: not steps.gate.is_set())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        steps.gate.set()

    async def main() -> str:
        client = AsyncEngine(loop)
        stay = asyncio.ensure_future(collect(client, request("stay", PROMPT[:6], max_tokens=40)))
        await leave(client)
        before = steps.count
        text = await stay
        assert not any(steps.watched[before + 1 :])  # the step after this line may have been prepared before it
        return text

    steps.watch = lambda: engine.is_live("go")
    steps.hold_at = when if how == "cancel" else None
    assert asyncio.run(main()) == greedy(PROMPT[:6], 40)


def test_a_client_that_leaves_while_a_step_runs_is_gone_before_the_next(
    engine: LLMEngine, loop: EngineLoop, steps: Steps
) -> None:
    steps.gate.clear()
    stream = loop.stream(request())
    thread = threading.Thread(target=list, args=(stream,))
    thread.start()
    assert steps.reached.wait(20)
    loop.abort("a")
    steps.gate.set()
    thread.join()
    wait_until(lambda: not engine.has_work)
    assert steps.count == 1


def test_a_late_cancel_does_not_hit_the_next_request_of_that_name(loop: EngineLoop) -> None:
    done = threading.Event()
    cancel = loop.submit(request(max_tokens=1), lambda event: done.set() if event is None else None)
    assert done.wait(20)
    stream = loop.stream(request())
    first = next(stream)
    cancel()
    assert first.text + "".join(delta.text for delta in stream) == greedy(PROMPT, 12)


def test_a_second_request_of_a_live_name_is_refused_and_the_first_goes_on(loop: EngineLoop, steps: Steps) -> None:
    steps.hold_at = 20
    first = loop.stream(request(max_tokens=100))
    text = next(first).text
    assert steps.reached.wait(20)
    events: list[Event] = []
    wait_until(lambda: not steps.gate.is_set())
    loop.submit(request(), events.append)
    steps.gate.set()
    wait_until(lambda: bool(events))
    assert isinstance(events[0], RequestError)
    assert "already live" in str(events[0])
    assert text + "".join(delta.text for delta in first) == greedy(PROMPT, 100)


def test_an_abort_by_name_ends_the_stream(loop: EngineLoop, steps: Steps) -> None:
    steps.hold_at = 20
    stream = loop.stream(request(max_tokens=150))
    deltas = [next(stream)]
    wait_until(lambda: not steps.gate.is_set())
    loop.abort("a")
    steps.gate.set()
    deltas += stream
    assert len(deltas) <= 20
    assert deltas[-1].finish_reason is None


def test_a_failed_step_costs_the_live_requests_and_no_other(
    engine: LLMEngine, loop: EngineLoop, steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    """The cache is dropped too: the blocks of that step were announced and never filled."""
    steps.fails = lambda: engine.num_live == 3

    async def main() -> list[Any]:
        client = AsyncEngine(loop)
        lost = [collect(client, request(f"r{i}", max_tokens=150)) for i in range(3)]
        return await asyncio.gather(*lost, return_exceptions=True)

    steps.gate.clear()
    threading.Thread(
        target=lambda: (wait_until(lambda: engine.num_live + len(loop._commands) >= 3), steps.gate.set())
    ).start()
    errors = asyncio.run(main())
    assert all(isinstance(error, BackendError) for error in errors)
    assert str(errors[0]).endswith("dropped every live request: ArithmeticError: the device")
    assert "on fire" in caplog.text
    deltas = list(loop.stream(request()))
    assert deltas[0].num_cached == 0
    assert "".join(delta.text for delta in deltas) == greedy(PROMPT, 12)


def test_a_request_that_cannot_start_costs_itself_alone(loop: EngineLoop) -> None:
    def broken() -> Any:
        raise LookupError("no such grammar")

    with pytest.raises(BackendError, match="LookupError: no such grammar"):
        next(loop.stream(Generation("bad", PROMPT, request().params, mask=broken)))
    assert "".join(delta.text for delta in loop.stream(request())) == greedy(PROMPT, 12)


def test_a_listener_that_raises_is_dropped(engine: LLMEngine, loop: EngineLoop) -> None:
    """As call_soon_threadsafe does once the event loop of a client is closed."""

    def gone(event: Event) -> None:
        raise RuntimeError("Event loop is closed")

    loop.submit(request("gone", max_tokens=100), gone)
    assert "".join(delta.text for delta in loop.stream(request())) == greedy(PROMPT, 12)
    wait_until(lambda: not engine.is_live("gone"))


def test_close_fails_the_live_and_refuses_the_late(engine: LLMEngine, loop: EngineLoop, steps: Steps) -> None:
    steps.hold_at = 20
    stream = loop.stream(request(max_tokens=150))
    next(stream)
    wait_until(lambda: not steps.gate.is_set())
    closer = threading.Thread(target=loop.close)
    closer.start()
    wait_until(lambda: loop._closing)
    steps.gate.set()
    closer.join()
    with pytest.raises(BackendError, match="closed before the request had ended"):
        list(stream)
    with pytest.raises(BackendError, match="takes no more requests"):
        next(loop.stream(request()))
    loop.abort("a")
    asyncio.run(AsyncEngine(loop).close())


def test_time_outs_reach_their_stream(loop: EngineLoop, steps: Steps) -> None:
    steps.hold_at = 15  # all eight seats are taken
    loop.submit(request("long", PROMPT, n=8, max_tokens=150), lambda event: None)
    wait_until(lambda: not steps.gate.is_set())
    events: list[Event] = []
    loop.submit(Generation("late", PROMPT[:3], request().params, queue_timeout=0.0), events.append)
    steps.gate.set()
    wait_until(lambda: None in events)
    assert [event.finish_reason for event in events if isinstance(event, Delta)] == [FinishReason.TIMEOUT]
    loop.abort("long")


def test_an_idle_engine_uses_no_cpu(loop: EngineLoop) -> None:
    list(loop.stream(request()))
    before = time.process_time()
    time.sleep(1)
    assert time.process_time() - before < 0.05


def test_a_mixture_of_requests_leaves_no_trace(engine: LLMEngine, loop: EngineLoop) -> None:
    """Case L36: 300 requests by 20 tasks; some leave at any time, some time out, the rest get their text."""
    rng = random.Random(0)

    async def one(client: AsyncEngine, index: int) -> None:
        length, count = rng.randint(1, len(PROMPT)), rng.randint(1, 24)
        generation = request(f"r{index}", PROMPT[:length], max_tokens=count, n=rng.choice((1, 1, 3)))
        texts = [""] * generation.params.n
        leaves_at = rng.choice((None, None, 0, 1, 5))
        task = asyncio.ensure_future(_gather(client, generation, texts, leaves_at))
        if rng.random() < 0.2:
            await asyncio.sleep(rng.random() / 50)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return
        await task
        if leaves_at is None:
            assert texts == [greedy(PROMPT[:length], count)] * len(texts)

    async def worker(client: AsyncEngine, indices: range) -> None:
        for index in indices:
            await one(client, index)

    async def main() -> None:
        client = AsyncEngine(loop)
        await asyncio.gather(*(worker(client, range(i, 300, 20)) for i in range(20)))

    asyncio.run(main())
    check_empty(engine, loop)


async def _gather(client: AsyncEngine, generation: Generation, texts: list[str], leaves_at: int | None) -> None:
    stream = client.stream(generation)
    seen = 0
    async for delta in stream:
        assert isinstance(delta, Delta)
        texts[delta.index] += delta.text
        if seen == leaves_at:
            await stream.aclose()
            return
        seen += 1


FORKED = """
import asyncio, os, signal, sys
sys.path.insert(0, sys.argv[1])
from fake_engine import make, request
from vtk.errors import BackendError
from vtk.llm_serving.async_engine import AsyncEngine
from vtk.llm_serving.engine_loop import EngineLoop

loop = EngineLoop(make())
opened, opened_async = loop.stream(request("b")), AsyncEngine(loop).stream(request("c"))
events = asyncio.new_event_loop()
counts = [len([next(opened)]), len([events.run_until_complete(anext(opened_async))])]
loop._wake.acquire()  # as the engine's own thread may hold it
child = os.fork()
if child == 0:
    signal.alarm(20)
    waits = (
        lambda: next(loop.stream(request())),
        lambda: next(opened),
        lambda: asyncio.new_event_loop().run_until_complete(anext(opened_async)),
    )
    for wait in waits:
        try:
            wait()
        except BackendError as error:
            print(error)
    loop.abort("a")
    loop.close()
    sys.stdout.flush()
    os._exit(7)
loop._wake.release()

async def rest():
    return [delta async for delta in opened_async]

counts[0] += len(list(opened))
counts[1] += len(events.run_until_complete(rest()))
events.close()
print(len(list(loop.stream(request()))), *counts, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
loop.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_is_told_that_it_has_no_engine() -> None:
    """It has the object and not its thread: it would wait for ever."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(Path(__file__).parents[1] / "data" / "llm")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    *told, counts = done.stdout.splitlines()
    assert len(told) == 3, "a new stream, and two that were opened before"
    for line in told:
        assert re.fullmatch(
            r"The engine runs in process \d+, and process \d+ was forked off it\. Load the model in .*", line
        )
    assert counts == "12 12 12 7"
    assert done.stderr == ""
