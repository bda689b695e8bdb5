"""Servers in this process over a tiny random Llama, the official client for them, and an engine behind a gate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import uvicorn

from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.engine import LLMEngine
from vtk.llm_serving.load import load_engine
from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.metrics import Metrics
from vtk.server.settings import ServerSettings
from vtk.serving.arbiter import Arbiter
from vtk.serving.language_model import LanguageModel

MODEL = "tiny-llama"


class OneModel:
    """What the routes ask of a Runtime, for one language model."""

    is_draining = False
    is_ready = True

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.num_leases = 0

    @contextmanager
    def language(self, name: str) -> Iterator[LanguageModel]:
        from vtk.errors import NotFoundError

        if name != MODEL:
            raise NotFoundError(f"No language model named '{name}' is served.")
        self.num_leases += 1
        try:
            yield self.model
        finally:
            self.num_leases -= 1

    def statuses(self) -> list[Any]:
        from vtk.runtime import ModelStatus

        return [ModelStatus(MODEL, "1", "llm", "generate", "ready", created=1.0)]


class Gate:
    """Stands before every step of an engine: open, or letting a number of steps pass."""

    def __init__(self, runner: Any) -> None:
        self._forward = runner.forward
        self._changed = threading.Condition()
        self._permits: float = float("inf")
        self.num_waiting = 0
        self.num_steps = 0
        self.failure: Exception | None = None
        runner.forward = self.forward

    def forward(self, *arguments: Any) -> Any:
        with self._changed:
            self.num_waiting += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._permits > 0, 60), "nobody opened the gate"
            self.num_waiting -= 1
            self._permits -= 1
            self.num_steps += 1
            failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return self._forward(*arguments)

    def allow(self, steps: float) -> None:
        """So many steps from now on, beside the one that may be running."""
        with self._changed:
            self._permits = steps
            self._changed.notify_all()

    def wait_at_gate(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_waiting > 0 and self._permits <= 0, 60)


class Served:
    """A server on a free port, with what is behind it."""

    def __init__(self, runtime: Any, settings: ServerSettings) -> None:
        self.runtime = runtime
        self.context = ServerContext(runtime, settings, Metrics())
        config = uvicorn.Config(create_app(self.context), port=0, log_config=None, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        until(lambda: self._server.started)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    @property
    def model(self) -> LanguageModel:
        model: LanguageModel = self.runtime.model
        return model

    @property
    def engine(self) -> LLMEngine:
        return self.model.loaded.engine

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def num_open(self) -> int:
        return self.model.num_open + self.model.loop.num_live + self.engine.num_live + self.runtime.num_leases

    def complete(self, prompt: Any = "hello", **options: Any) -> Any:
        return self.client.completions.create(model=MODEL, prompt=prompt, **options)

    def chat(self, content: Any = "hello", **options: Any) -> Any:
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.client.chat.completions.create(model=MODEL, messages=messages, **options)

    def close(self) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture(name="until")
def until_fixture() -> Callable[[Callable[[], Any]], None]:
    return until


def until(true: Callable[[], Any]) -> None:
    """Wait for another thread; a generous limit ends a test that would hang."""
    limit = time.monotonic() + 60
    while not true():
        assert time.monotonic() < limit, "it never came true"
        time.sleep(0.002)


@contextmanager
def serve(folder: Path, settings: ServerSettings, *, max_queued: int = 256, **engine: Any) -> Iterator[Served]:
    options: dict[str, Any] = {"cpu_kvcache_space": 0.01, "num_threads": 1, **engine}
    args = EngineArgs(**options)
    model = LanguageModel(load_engine(folder, args), args, Arbiter(), name=MODEL, max_queued=max_queued)
    served = Served(OneModel(model), settings)
    try:
        yield served
        until(lambda: served.num_open == 0)
        pool = served.engine.scheduler.pool
        assert pool.num_free == pool.num_blocks
    finally:
        served.close()
        model.close()


@pytest.fixture(scope="session")
def served(tiny_llama: Path) -> Iterator[Served]:
    """A server with default settings for all tests that only ask it something; afterwards everything is free."""
    with serve(tiny_llama, ServerSettings()) as running:
        yield running


@pytest.fixture
def serve_with(tiny_llama: Path) -> Iterator[Callable[..., Any]]:
    """A server over an engine with these options; `gate` stands before its steps."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(settings: ServerSettings | None = None, **options: Any) -> SimpleNamespace:
            running = stack.enter_context(serve(tiny_llama, settings or ServerSettings(), **options))
            gate = Gate(running.model.loaded.runner)
            stack.callback(gate.allow, float("inf"))
            return SimpleNamespace(served=running, gate=gate)

        yield start


@pytest.fixture(scope="session")
def real_served(tiny_llama: Path, embed_bundle: Path) -> Iterator[Served]:
    """A server over a real Runtime with the tiny Llama and a bundle that embeds."""
    from vtk.runtime import Runtime
    from vtk.serving.settings import RuntimeSettings

    engine: Any = {"cpu_kvcache_space": 0.01, "num_threads": 1}
    chosen = (str(tiny_llama), str(embed_bundle))
    runtime = Runtime(RuntimeSettings(selected=chosen, engine=engine, threads=1, memory_bytes=1 << 30))
    try:
        runtime.start()
        served = Served(runtime, ServerSettings())
        yield served
        served.close()
    finally:
        runtime.close()
