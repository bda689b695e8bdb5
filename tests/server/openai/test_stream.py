"""Streams as they go over the wire: pieces, failures in the middle, and what is measured."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest

from vtk.errors import DeadlineError, RequestError, UnavailableError
from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.engine import Delta, Generation
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.server.openai.event_stream import EventStream
from vtk.server.openai.feed import Feed

BODY: dict[str, Any] = {"model": "tiny-llama", "prompt": "hello", "max_tokens": 30, "ignore_eos": True, "stream": True}


def events_of(text: str) -> list[str]:
    assert text.endswith("\n\n")
    return text[:-2].split("\n\n")


def test_every_event_is_one_line_of_json(served: Any) -> None:
    response = httpx.post(f"{served.url}/v1/completions", json=BODY)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    *events, done = events_of(response.text)
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {"id", "object", "created", "model", "choices"} == set(chunks[0])


def test_a_model_name_and_text_of_every_kind_are_written_as_json(served: Any) -> None:
    """The constant parts of a chunk are made once: what they hold must be escaped all the same."""
    text = 'quote " backslash \\ newline \n tab \t null \x00 separator \u2028 \U0001f642'
    extra = {"structured_outputs": {"choice": [text.replace("\x00", "")]}}
    for logprobs in (None, 1):
        chunks = served.complete(max_tokens=200, stream=True, logprobs=logprobs, extra_body=extra)
        assert "".join(chunk.choices[0].text for chunk in chunks) == text.replace("\x00", "")


@pytest.mark.parametrize("kind", ["chat", "complete"])
def test_a_failure_in_the_middle_ends_the_stream_with_an_error(serve_with: Callable[..., Any], kind: str) -> None:
    running = serve_with()
    running.gate.allow(3)
    stream = getattr(running.served, kind)(stream=True, max_tokens=50, extra_body={"ignore_eos": True})
    received = [next(stream)]
    running.gate.failure = MemoryError("no room")
    running.gate.allow(float("inf"))
    with pytest.raises(openai.APIError, match="no room"):
        received += stream
    assert received
    assert running.served.complete(max_tokens=2).usage.completion_tokens == 2


def test_a_failure_before_the_first_token_has_a_status(serve_with: Callable[..., Any]) -> None:
    running = serve_with()
    running.gate.failure = MemoryError("no room")
    response = httpx.post(f"{running.served.url}/v1/completions", json=BODY)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"


def test_the_error_event_has_the_shape_of_an_error() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        raise UnavailableError("gone")

    sent = run(chunks())
    assert sent[0] == b"data: 1\n\n"
    name, data = sent[1].decode().strip().split("\n")
    assert name == "event: error"
    error = json.loads(data.removeprefix("data: "))["error"]
    assert error == {"message": "gone", "type": "server_error", "param": None, "code": "unavailable"}
    assert sent[2:] == [b""]


def test_an_unexpected_failure_is_logged_and_told_without_details(caplog: pytest.LogCaptureFixture) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        raise ZeroDivisionError("a secret")

    sent = run(chunks())
    assert b"secret" not in b"".join(sent)
    assert b"server_error" in sent[1]
    assert "a secret" in caplog.text


def run(chunks: AsyncIterator[bytes]) -> list[bytes]:
    """What a response sends as bodies; its close must have been awaited."""
    sent: list[bytes] = []
    closed: list[bool] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    async def close() -> None:
        closed.append(True)

    asyncio.run(EventStream(chunks, close)({"type": "http"}, receive, send))
    assert closed == [True]
    return sent


class QueuedModel:
    """Streams what is put into the queue of each request; None ends it."""

    def __init__(self, num: int) -> None:
        self.queues: list[asyncio.Queue[Delta | None]] = [asyncio.Queue() for _ in range(num)]

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        queue = self.queues[int(generation.request_id)]
        while (delta := await queue.get()) is not None:
            yield delta


def feed_of(num: int) -> tuple[Any, Feed]:
    model: Any = QueuedModel(num)
    return model, Feed(model, [Generation(str(i), [1], SamplingParams()) for i in range(num)])


def test_what_comes_in_one_moment_is_one_piece() -> None:
    async def main() -> None:
        model, feed = feed_of(2)
        for i in range(3):
            for queue in model.queues:
                queue.put_nowait(Delta("r", 0, (), str(i)))
        arrived = await feed.__anext__()
        assert sorted((which, delta.text) for which, delta in arrived) == [
            (w, str(i)) for w in (0, 1) for i in range(3)
        ]
        model.queues[1].put_nowait(Delta("r", 0, (), "end", FinishReason.STOP))
        assert [(which, delta.text) for which, delta in await feed.__anext__()] == [(1, "end")]
        model.queues[0].put_nowait(Delta("r", 0, (), "end", FinishReason.STOP))
        for queue in model.queues:
            queue.put_nowait(None)
        assert [delta.text async for arrived in feed for _, delta in arrived] == ["end"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("last", "error", "message"),
    [
        (Delta("r", 0, (), "", FinishReason.TIMEOUT), DeadlineError, "waited too long"),
        (Delta("r", 0, (), "", FinishReason.ABORT, "too ambiguous"), RequestError, "too ambiguous"),
        (None, UnavailableError, "dropped"),
    ],
)
def test_an_output_without_its_end_is_an_error_after_what_came(last: Any, error: type[Exception], message: str) -> None:
    async def main() -> None:
        model, feed = feed_of(1)
        model.queues[0].put_nowait(Delta("r", 0, (), "text"))
        model.queues[0].put_nowait(last)
        await feed.wait()
        assert [delta.text for _, delta in await feed.__anext__()] == ["text"]
        with pytest.raises(error, match=message):
            await feed.__anext__()
        await feed.close()

    asyncio.run(main())


def test_the_course_of_a_request_is_measured(real_served: Any) -> None:
    def values() -> dict[str, float]:
        text = real_served.context.metrics.render().decode()
        rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in rows}

    real_served.complete("warm", max_tokens=1, extra_body={"ignore_eos": True})
    before = values()
    real_served.complete(["a", "b"], n=2, max_tokens=5, seed=1, extra_body={"ignore_eos": True})
    list(real_served.chat(stream=True, max_tokens=5, extra_body={"ignore_eos": True}))
    after = values()
    label = '{model_name="tiny-llama"}'
    expected = {
        f"vllm:time_to_first_token_seconds_count{label}": 3,
        f"vllm:request_generation_tokens_sum{label}": 25,
        'vllm:request_success_total{finished_reason="length",model_name="tiny-llama"}': 3,
        f"vllm:request_prompt_tokens_count{label}": 3,
        'vtk:ttft_part_seconds_count{model_name="tiny-llama",part="prefill"}': 3,
    }
    assert {name: after[name] - before[name] for name in expected} == expected
